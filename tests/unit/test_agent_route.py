"""Where activities are scheduled while workers of one queue serve different agents."""

from __future__ import annotations

import pytest
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType

from mulligan.wire.agent_facts import AGENT_NOT_SERVED
from mulligan.workflows.agent_route import AgentRoute, is_declined


def failed(cause: Exception) -> ActivityError:
    error = ActivityError(
        "failed",
        scheduled_event_id=1,
        started_event_id=0,
        identity="",
        activity_type="",
        activity_id="",
        retry_state=None,
    )
    error.__cause__ = cause
    return error


async def test_an_agent_whose_workers_have_all_gone_is_reported_as_declined_not_as_a_timeout() -> None:
    """The timeout of the gone workers' queue is no failure of the tool, whose own queue has another one."""
    route = AgentRoute(lambda: False)
    has_gone = False
    tried: list[str | None] = []

    async def schedule(queue: str | None) -> str:
        tried.append(queue)
        if queue is None:
            others = [] if has_gone else ["other"]
            raise failed(ApplicationError("not served", others, type=AGENT_NOT_SERVED))
        if has_gone:
            raise failed(TimeoutError("not started", type=TimeoutType.SCHEDULE_TO_START, last_heartbeat_details=[]))
        return queue

    assert await route.run(schedule, waits=False) == "other"
    has_gone = True
    with pytest.raises(ActivityError) as raised:
        await route.run(schedule, waits=False)
    assert is_declined(raised.value)
    assert tried == [None, "other", "other", None]


async def test_a_worker_that_is_slow_is_tried_again_while_it_is_named() -> None:
    """A busy worker may start an activity later than the time in which it is tried: a run that opens must not fail then."""
    route = AgentRoute(lambda: False)
    tried: list[str | None] = []

    async def schedule(queue: str | None) -> str:
        tried.append(queue)
        if queue is None:
            raise failed(ApplicationError("not served", ["busy"], type=AGENT_NOT_SERVED))
        if len(tried) < 6:
            raise failed(TimeoutError("not started", type=TimeoutType.SCHEDULE_TO_START, last_heartbeat_details=[]))
        return queue

    assert await route.run(schedule, waits=False) == "busy"
    assert tried == [None, "busy"] * 3
