"""A run's status: the words for it, which are the same in HTTP, commands, events, memo, search attributes and spans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from temporalio.exceptions import CancelledError, TerminatedError, TimeoutError

from mulligan.values import Status

OpenStatus = Literal["running", "waiting"]
NoResultStatus = Literal["failed", "cancelled", "terminated", "timed_out"]
RunStatus = OpenStatus | Status | NoResultStatus
STATUSES: tuple[str, ...] = (*get_args(OpenStatus), *get_args(Status), *get_args(NoResultStatus))

STATUS_MEMO = "mulligan_status"
"""The key in an open run's memo of its status. There is none before the run has waited for the first time."""
PENDING_MEMO = "mulligan_pending"
"""The key in an open run's memo that is 1 while calls of it wait for people."""

_OUTSIDE = frozenset({"person", "callback", "timer"})
"""The kinds of waits that no work of the run ends; a budget is waited for by a timer."""


def open_status(kinds: Iterable[str | None]) -> OpenStatus:
    """The status of an open run by the kinds of what it waits for now. None: the wait is not shown to people."""
    known = {kind for kind in kinds if kind is not None}
    return "waiting" if known and known <= _OUTSIDE else "running"


def is_open(status: str) -> bool:
    """Whether a run with this status goes on."""
    return status in get_args(OpenStatus)


def status_of_cause(cause: BaseException | None) -> NoResultStatus:
    """The status of a run that ended without a result, by the cause of Temporal's failure."""
    if isinstance(cause, CancelledError):
        return "cancelled"
    if isinstance(cause, TerminatedError):
        return "terminated"
    return "timed_out" if isinstance(cause, TimeoutError) else "failed"


def status_in_temporal(name: str) -> str:
    """The status of a run by the name of Temporal's (`WorkflowExecutionStatus`), which spells one word otherwise.

    A run that continued as new goes on, and a run that Temporal calls completed has the status of its result.
    """
    names = {"CANCELED": "cancelled", "CONTINUED_AS_NEW": "running"}
    return names.get(name, name.lower())
