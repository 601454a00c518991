"""Fields that were added to a JSON shape later, or that are mostly empty."""

from __future__ import annotations

from typing import Any

from pydantic import Field

__all__ = ["optional_field"]


def optional_field(default: Any = None, **constraints: Any) -> Any:
    """A pydantic field that is left out of the JSON where it says nothing: is None, empty, or equal to `default`.

    Every value of a run is in Temporal's history, thousands of times in a long one; and a reader that is older than the
    field is not given it unless it is used. `constraints` are those of pydantic's `Field`.
    """
    return Field(
        default=default, **constraints, exclude_if=lambda value: value is None or value == [] or value == default
    )
