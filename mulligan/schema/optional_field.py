"""Fields of a JSON shape that are left out where they have no value."""

from __future__ import annotations

import operator
from typing import Any

from pydantic import Field


def optional_field(default: Any = None, **constraints: Any) -> Any:
    """A pydantic field that is not written to JSON where it is None, an empty list, or equal to `default`.

    Temporal's history contains every value of a run, thousands of times in a long one.

    Args:
        default: The field's default.
        constraints: Other arguments of pydantic's `Field`.
    """
    if default is not None and not default:
        return Field(default=default, **constraints, exclude_if=operator.not_)  # written in C: it is asked very often
    return Field(
        default=default, **constraints, exclude_if=lambda value: value is None or value == [] or value == default
    )
