"""Results of activities, which a worker of another version, or another program, may have written."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel

from mulligan.values import COUNTS, Usage

MOST_COUNT = 10**15
"""Tokens, attempts, steps, bytes: more is no count, and a larger integer cannot be multiplied by a price."""
MOST_INT = 2**31 - 1
"""Temporal's counts have 32 bits."""
MOST_SECONDS = 10**10
"""About 300 years: Temporal's timeouts cannot be longer."""
MOST_USD = 10**12
NAME_BYTES = 1_000
"""UTF-8 bytes of a task queue: Temporal refuses commands with a longer one."""


class CheckedResult(BaseModel):
    """A result that may be of no use to the workflow, though each of its fields has the right type."""

    def fault(self) -> str | None:
        """Why the workflow could not use it; None if it can."""
        return None


def are_tokens(usage: Usage) -> bool:
    """Whether all of a usage's numbers are counts."""
    return are_between(0, MOST_COUNT, [getattr(usage, name) for name in COUNTS])


def are_between(least: int, most: int, values: Iterable[float | None]) -> bool:
    """Whether all values are numbers within limits, or None."""
    return all(value is None or least <= value <= most for value in values)  # NaN is not
