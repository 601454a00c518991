"""Fields of a JSON shape that are left out where they have no value."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

from pydantic import Field


def optional_field(default: Any = None, **constraints: Any) -> Any:
    """A pydantic field that is not written to JSON where it has its default, nor where both it and the default are empty.

    Temporal's history contains every value of a run, thousands of times in a long one.

    Args:
        default: The field's default.
        constraints: Other arguments of pydantic's `Field`.
    """
    # Functions in C: they are called very often.
    if default is None:
        left_out: Any = partial(operator.contains, (None, []))
    else:
        left_out = partial(operator.eq, default) if default else operator.not_
    return Field(default=default, **constraints, exclude_if=left_out)
