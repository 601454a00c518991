"""Reads the result of an activity, which a worker of another version, or another program, may have written.

The SDK would read it before any code of the workflow runs, and what it cannot read fails the workflow task again and again.
Here it is a failed activity, with `InvalidActivityResultError` as its cause.
"""

from __future__ import annotations

from typing import TypeVar, cast

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, RetryState

from mulligan.errors import InvalidActivityResultError
from mulligan.schema.json_limits import JsonMeter
from mulligan.values import Consumption, RunResult
from mulligan.wire.checked_result import MOST_COUNT, MOST_USD, CheckedResult, are_between, are_tokens
from mulligan.wire.read_payload import read_payloads

Result = TypeVar("Result", bound=BaseModel)

MOST_DEPTH = 180
"""Levels of JSON. pydantic reads about 200, and what the run carries adds some."""


def read_result(activity: str, raw: RawValue | None, result_type: type[Result]) -> Result:
    """The result of an activity, or of the workflow of a sub-agent.

    Raises:
        ActivityError: it is not such a result, or the run cannot use it; its cause is an InvalidActivityResultError.
    """
    if raw is None:
        raise _as_failed_activity(activity, "there is none")
    fault = _fault_of_json(raw.payload.data)
    if fault is None:
        try:
            [result] = read_payloads(workflow.payload_converter(), [raw.payload], [result_type])
            fault = _fault_of(result) if isinstance(result, result_type) else "it is of another type"
        except ValueError as error:
            fault = str(error)
    if fault is None:
        return cast("Result", result)
    raise _as_failed_activity(activity, fault)


def can_be_added(used: RunResult | Consumption) -> bool:
    """Whether the numbers of another run can be added to this one's."""
    return (
        are_tokens(used.usage)
        and are_between(0, MOST_COUNT, [used.steps, used.sub_runs])
        and are_between(0, MOST_USD, [used.cost, used.counted])
    )


def _as_failed_activity(activity: str, fault: str) -> ActivityError:
    error = ActivityError(
        f"The result of the activity {activity} cannot be used",
        scheduled_event_id=0,
        started_event_id=0,
        identity="",
        activity_type=activity,
        activity_id="",
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
    message = (
        f"The result of the activity {activity!r} cannot be used: {fault}. A worker of another version, or another "
        "program, has written it."
    )
    # Not the error itself: a caller that raises it from this one would close a circle of causes.
    error.__cause__ = ApplicationError(message, type=InvalidActivityResultError.__name__, non_retryable=True)
    return error


def _fault_of_json(data: bytes) -> str | None:
    meter = JsonMeter()
    meter.add(data)
    return f"it is nested more than {MOST_DEPTH} levels deep" if meter.depth > MOST_DEPTH else None


def _fault_of(result: BaseModel) -> str | None:
    if isinstance(result, RunResult):
        return None if can_be_added(result) else "its numbers cannot be added up"
    return result.fault() if isinstance(result, CheckedResult) else None
