"""The exceptions in an `ExceptionGroup`, as `asyncio.TaskGroup` and anyio raise it also for a single one."""

from __future__ import annotations

from collections.abc import Callable

MOST_CAUSES = 20
"""Exceptions of a group that are looked at: a group of thousands says no more than its first ones."""


def causes(error: BaseException) -> list[BaseException]:
    """The first exceptions in a group and in groups within it, in their order; any other exception itself."""
    found: list[BaseException] = []
    left = [error]
    while left and len(found) < MOST_CAUSES:
        each = left.pop()
        if isinstance(each, BaseExceptionGroup):
            left += reversed(each.exceptions[:MOST_CAUSES])
        else:
            found.append(each)
    return found


def single_cause(error: BaseException) -> BaseException:
    """The one exception in a group; a group of several, and any other exception, as it is."""
    found = causes(error)
    return found[0] if len(found) == 1 else error


def all_causes(error: BaseException, matches: Callable[[BaseException], bool]) -> bool:
    """Whether an exception matches, or each one of the group that it is."""
    return matches(error) or (isinstance(error, BaseExceptionGroup) and all(map(matches, causes(error))))
