"""How each activity of a run is scheduled: one table, and the function that schedules by it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import Priority, RawValue, RetryPolicy

from mulligan.wire.agent_facts import OPEN_RUN
from mulligan.wire.model_call import CALL_MODEL
from mulligan.wire.questions import CHECK_ANSWER
from mulligan.wire.run_end import FINISH_RUN
from mulligan.wire.tool_call import CALL_TOOL, RECORD_FAILED_CALL
from mulligan.wire.ui_summary import ui_summary
from mulligan.wire.updates import CHECK_EDIT, RECORD_DECISION
from mulligan.workflows import limits
from mulligan.workflows.activity_result import read_result
from mulligan.workflows.agent_route import AgentRoute

Result = TypeVar("Result", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How an activity is scheduled. Its reasons are in limits.py.

    `timeout`: of one attempt; None: it depends on the request. `total`: of all attempts. `is_local`: whether it is a local
    activity where the workflow's own worker serves the agent. `waits`: whether it waits for a worker that serves the agent,
    as long as it takes. `queue`: a task queue of its own; None: the run's. `queue_timeout`: how long it may wait there.
    `is_routed`: whether a worker must serve the agent. `calls_model`: whether the limits of
    model calls apply to it. `suffix`: of the task queues of the workers that do.
    """

    timeout: timedelta | None = None
    total: timedelta | None = None
    retry: RetryPolicy | None = None
    has_heartbeat: bool = False
    calls_model: bool = False
    is_local: bool = False
    waits: bool = True
    queue: str | None = None
    queue_timeout: timedelta | None = None
    is_routed: bool = True
    suffix: str = ""
    cancellation: workflow.ActivityCancellationType = workflow.ActivityCancellationType.TRY_CANCEL


RECORD = Schedule(timeout=limits.RECORD_TIMEOUT, retry=limits.RECORD_RETRY, is_local=True)
"""It writes a span. As a local activity it adds one event to the history."""
SCHEDULES: Mapping[str, Schedule] = {
    OPEN_RUN: Schedule(timeout=limits.OPEN_RUN_TIMEOUT, retry=limits.OPEN_RUN_RETRY, waits=False),
    CALL_MODEL: Schedule(has_heartbeat=True, calls_model=True),
    CALL_TOOL: Schedule(
        has_heartbeat=True,
        # A cancelled run ends after its tools have: their spans are closed, and none continues to run unseen.
        cancellation=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    ),
    CHECK_EDIT: Schedule(
        timeout=limits.CHECK_EDIT_TIMEOUT,
        total=limits.CHECK_EDIT_TOTAL_TIMEOUT,
        waits=False,
    ),
    CHECK_ANSWER: Schedule(timeout=limits.CHECK_EDIT_TIMEOUT, total=limits.CHECK_EDIT_TOTAL_TIMEOUT, is_routed=False),
    RECORD_DECISION: RECORD,
    RECORD_FAILED_CALL: RECORD,
    FINISH_RUN: replace(RECORD, is_routed=False),
}


async def run_activity(
    name: str,
    request: BaseModel,
    result_type: type[Result],
    schedule: Schedule,
    *,
    route: AgentRoute | None = None,
    summary: str | None = None,
    wait: Callable[[workflow.ActivityHandle[RawValue]], Awaitable[RawValue]] | None = None,
) -> Result:
    """The result of an activity.

    Args:
        name: Its type.
        request: Its input.
        result_type: The type of its result; `NoResult` if it has none.
        schedule: How it is scheduled.
        route: Where the agent is served; None: any worker can run it.
        summary: What Temporal's UI shows of it.
        wait: Waits for the activity that was started, if its caller may end it.

    Raises:
        ActivityError: it has failed, or its result is none that the run can use.
    """
    priority = route.priority if route else Priority.default

    async def attempt(queue: str | None) -> Result:
        handle = _start(name, request, schedule, queue, priority, ui_summary(summary) if summary else None)
        raw = await (wait(handle) if wait else handle)
        return result_type() if result_type is NoResult else read_result(name, raw, result_type)

    if route is None or not schedule.is_routed:
        return await attempt(None)
    return await route.run(attempt, waits=schedule.waits)


class NoResult(BaseModel):
    """The result of an activity that returns nothing."""


def _start(
    name: str, request: BaseModel, schedule: Schedule, queue: str | None, priority: Priority, summary: str | None
) -> workflow.ActivityHandle[RawValue]:
    """Start an activity. `queue`: of the workers that serve the agent; None: where it belongs if all workers serve it."""
    if schedule.is_local and queue is None:
        return workflow.start_local_activity(
            name,
            request,
            result_type=RawValue,
            start_to_close_timeout=schedule.timeout,
            retry_policy=schedule.retry,
            summary=summary,
        )
    return workflow.start_activity(
        name,
        request,
        result_type=RawValue,
        task_queue=f"{queue}{schedule.suffix}" if queue else schedule.queue,
        schedule_to_start_timeout=limits.AGENT_START_TIMEOUT if queue else schedule.queue_timeout,
        start_to_close_timeout=schedule.timeout,
        schedule_to_close_timeout=schedule.total,
        heartbeat_timeout=limits.HEARTBEAT_TIMEOUT if schedule.has_heartbeat else None,
        retry_policy=schedule.retry,
        priority=priority,
        cancellation_type=schedule.cancellation,
        summary=summary,
    )
