"""How a tool call is scheduled by the facts of its tool, and what the model is told of one whose activity has failed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, TimeoutError, TimeoutType

from mulligan.wire.agent_facts import AGENT_NOT_SERVED, OPEN_RUN, ToolFacts
from mulligan.wire.event_types import ATTEMPT_ENDED
from mulligan.wire.model_call import CALL_MODEL
from mulligan.wire.questions import CHECK_ANSWER
from mulligan.wire.run_context import RunContext
from mulligan.wire.run_end import FINISH_RUN
from mulligan.wire.tool_call import CALL_TOOL, RECORD_FAILED_CALL, CallTool
from mulligan.wire.updates import CHECK_EDIT, RECORD_DECISION
from mulligan.workflows.scheduling import SCHEDULES
from mulligan.workflows.tool_activity import _lost_call, _schedule
from tests.support.core_parts import TRACE, tool_call

CALL = CallTool(
    where=RunContext(agent="clerk", conversation="0", trace=TRACE), call=tool_call(), arguments={}, step=1, digest="d"
)
NO_WORKER = TimeoutError("t", type=TimeoutType.SCHEDULE_TO_START, last_heartbeat_details=[])
TOO_LONG = TimeoutError("t", type=TimeoutType.START_TO_CLOSE, last_heartbeat_details=[])
SILENT = TimeoutError("t", type=TimeoutType.HEARTBEAT, last_heartbeat_details=[{ATTEMPT_ENDED: 1}])
DECLINED = ApplicationError("no", type=AGENT_NOT_SERVED)
UNUSABLE = ApplicationError("no", type="InvalidActivityResultError")
DIED = ApplicationError("no", {ATTEMPT_ENDED: 2}, type="WorkerLost")
NOT_STORED = ApplicationError("the disk\nis full.", type="StorageError")
NOT_SAID = ApplicationError("Worker shutting down")
LONG = ApplicationError("a " * 10_000, type="OSError")
MAY_HAVE = " It may or may not have done its work."
LOST = "was lost: its worker died, stopped answering, or shut down"
EARLIER = " An attempt before may have been started, and may have done its work."


def failed(cause: BaseException) -> ActivityError:
    error = ActivityError(
        "failed", scheduled_event_id=1, started_event_id=1, identity="", activity_type="call_tool", activity_id="1",
        retry_state=RetryState.MAXIMUM_ATTEMPTS_REACHED,
    )  # fmt: skip
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("cause", "facts", "kind", "says", "attempts", "written"),
    [
        (TOO_LONG, {}, "tool_timeout", f"did not finish within 5 s.{MAY_HAVE}", 1, None),
        (TOO_LONG, {"attempts": 3}, "tool_timeout", f"did not finish within 5 s, on each of 3 attempts.{MAY_HAVE}", 3, None),
        (SILENT, {}, "tool_lost", f"{LOST}.{MAY_HAVE}", 1, None),
        (SILENT, {"attempts": 2}, "tool_lost", f"{LOST}, on each of 2 attempts.{MAY_HAVE}", 2, 1),
        (SILENT, {"attempts": 2, "local": True}, "tool_lost", f"{LOST}, on each of 2 attempts.{MAY_HAVE}", 2, None),
        (DIED, {"attempts": 3}, "tool_lost", f"{LOST}, on each of 3 attempts.{MAY_HAVE}", 3, 2),
        (DECLINED, {}, "tool_lost", "was not started: no worker serves its agent.", 0, None),
        (DECLINED, {"attempts": 2}, "tool_lost", f"was not started: no worker serves its agent.{EARLIER}", 1, None),
        (NO_WORKER, {"task_queue": "gpu", "queue_timeout": 9}, "tool_lost",
         "was not started: no worker of task queue 'gpu' took it within 9 s.", 0, None),
        (NO_WORKER, {"task_queue": "gpu", "queue_timeout": 9, "attempts": 3}, "tool_lost",
         f"was not started: no worker of task queue 'gpu' took it within 9 s.{EARLIER}", 2, None),
        (NOT_STORED, {}, "tool_lost", f"was lost: its worker has no result to send (StorageError: the disk is full).{MAY_HAVE}", 1, None),
        (NOT_SAID, {}, "tool_lost", f"{LOST}.{MAY_HAVE}", 1, None),
        (LONG, {}, "tool_lost", f"was lost: its worker has no result to send (OSError: {'a ' * 249}a).{MAY_HAVE}", 1, None),
        (UNUSABLE, {"attempts": 2}, "tool_lost",
         "was lost: the result of its worker cannot be used. It may have done its work.", 2, None),
    ],
)  # fmt: skip
def test_what_the_model_is_told_of_a_lost_call(
    cause: BaseException, facts: dict[str, Any], kind: str, says: str, attempts: int, written: int | None
) -> None:
    """Whether it may have done its work, how often it was tried, and how many of its attempts have their spans."""
    lost = _lost_call(CALL, ToolFacts(timeout=5, **facts), failed(cause), 12.5)
    assert (lost.kind, lost.message) == (kind, f"The tool pay {says}")
    assert (lost.attempts, lost.written, lost.started) == (attempts, written, 12.5)


def test_a_tool_is_scheduled_by_its_facts() -> None:
    """Temporal's timeout comes after the tool's own, which says why."""
    plain = _schedule(ToolFacts(timeout=60))
    assert (plain.timeout, plain.queue, plain.queue_timeout) == (timedelta(seconds=70), None, None)
    assert (plain.is_local, plain.is_routed, plain.has_heartbeat, plain.waits) == (False, True, True, True)
    assert plain.retry is not None
    assert plain.retry.maximum_attempts == 1
    local = _schedule(ToolFacts(timeout=1, local=True, attempts=4))
    assert local.is_local
    assert local.retry is not None
    assert local.retry.maximum_attempts == 4


def test_a_tool_with_a_queue_of_its_own_is_not_looked_for_where_its_agent_is_served() -> None:
    far = _schedule(ToolFacts(timeout=60, task_queue="gpu", queue_timeout=9))
    assert (far.queue, far.queue_timeout, far.is_routed) == ("gpu", timedelta(seconds=9), False)


def test_which_activities_wait_for_a_worker_that_serves_the_agent() -> None:
    """A person, or whoever starts a run, gets an answer instead; and any worker can close a trace."""
    routed = {name for name, each in SCHEDULES.items() if each.is_routed}
    waiting = {name for name in routed if SCHEDULES[name].waits}
    assert routed == {OPEN_RUN, CALL_MODEL, CALL_TOOL, CHECK_EDIT, RECORD_DECISION, RECORD_FAILED_CALL}
    assert waiting == routed - {OPEN_RUN, CHECK_EDIT}


def test_which_activities_are_local_and_which_report_that_they_live() -> None:
    """What only writes a span adds one event to the history. What may take long is missed soon if its worker dies."""
    local = {name for name, each in SCHEDULES.items() if each.is_local}
    assert local == {RECORD_DECISION, RECORD_FAILED_CALL, FINISH_RUN}
    assert {name for name, each in SCHEDULES.items() if each.has_heartbeat} == {CALL_MODEL, CALL_TOOL}
    assert {name for name, each in SCHEDULES.items() if each.calls_model} == {CALL_MODEL}
    assert {name for name, each in SCHEDULES.items() if each.total is not None} == {CHECK_EDIT, CHECK_ANSWER}


def test_a_cancelled_run_ends_after_its_tools() -> None:
    ends_later = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
    assert {name for name, each in SCHEDULES.items() if each.cancellation is ends_later} == {CALL_TOOL}
