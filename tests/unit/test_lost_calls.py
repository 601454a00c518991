"""What is said and done of a call whose worker is lost."""

from __future__ import annotations

from typing import Any, cast

import pytest
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, TimeoutError, TimeoutType
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client.settings import Settings
from mulligan.supervisor.lost_work import LostWork, LostWorkReport
from mulligan.supervisor.supervisor import _Supervisor
from mulligan.supervisor.worker_process import WorkerProcess
from mulligan.supervisor.workflow_tasks import Run
from mulligan.values import ToolCall
from mulligan.wire.agent_facts import AGENT_NOT_SERVED, ToolFacts
from mulligan.wire.run_context import RunContext
from mulligan.wire.tool_call import CallTool
from mulligan.worker.supervisor_link import Kind, frame
from mulligan.workflows.tool_activity import _attempts_with_spans, _lost_call

CALL = CallTool(
    where=RunContext(agent="a", conversation="0", trace="t"),
    call=ToolCall(id="c", name="pay", arguments=""),
    arguments={},
    step=1,
    digest="d",
)
UNSTARTED = TimeoutError("t", type=TimeoutType.SCHEDULE_TO_START, last_heartbeat_details=[])
DECLINED = ApplicationError("no", type=AGENT_NOT_SERVED)
UNUSABLE = ApplicationError("no", type="InvalidActivityResultError")


def message_for(cause: BaseException, attempts: int) -> tuple[str, int]:
    error = ActivityError(
        "failed", scheduled_event_id=1, started_event_id=1, identity="", activity_type="call_tool", activity_id="1",
        retry_state=RetryState.MAXIMUM_ATTEMPTS_REACHED,
    )  # fmt: skip
    error.__cause__ = cause
    lost = _lost_call(CALL, ToolFacts(timeout=5, attempts=attempts, task_queue="q", queue_timeout=9), error, 0.0)
    assert lost.kind == "tool_lost"
    return lost.message, lost.attempts


@pytest.mark.parametrize("cause", [UNSTARTED, DECLINED], ids=["no worker", "declined"])
def test_a_call_that_no_worker_took_may_have_run_only_where_an_attempt_came_before(cause: BaseException) -> None:
    message, attempts = message_for(cause, 1)
    assert "was not started: no worker" in message
    assert "may have" not in message
    assert attempts == 0
    message, _ = message_for(cause, 3)
    assert message.endswith("An attempt before may have been started, and may have done its work.")


def test_a_call_whose_result_cannot_be_used_may_have_done_its_work() -> None:
    message, attempts = message_for(UNUSABLE, 1)
    assert message == "The tool pay was lost: the result of its worker cannot be used. It may have done its work."
    assert attempts == 1


@pytest.mark.parametrize(
    ("cause", "written"),
    [
        (ApplicationError("died", {"mulligan.attempt_ended": 1}, type="WorkerLost"), 1),
        (ApplicationError("died", {"mulligan.attempt_ended": 0}, type="WorkerLost"), 0),
        (ApplicationError("died", type="WorkerLost"), None),
        (
            TimeoutError(
                "t", type=TimeoutType.HEARTBEAT, last_heartbeat_details=[{"mulligan.attempt_ended": 2}, "own"]
            ),
            2,
        ),
        (TimeoutError("t", type=TimeoutType.HEARTBEAT, last_heartbeat_details=["own", {"own": 7}]), 0),
        (UNSTARTED, None),
    ],
)
def test_the_last_heartbeat_says_which_attempts_of_a_lost_call_have_their_spans(
    cause: BaseException, written: int | None
) -> None:
    assert _attempts_with_spans(cause) == written


async def test_each_run_of_a_dead_process_is_reported_though_the_server_does_not_answer_for_one() -> None:
    nothing = LostWork("i", "r", (), frozenset(), frozenset(), frozenset(), (), (), None)
    report = LostWorkReport(cast("Any", _NoServer()), nothing)
    done: list[int] = []

    async def report_run(number: int) -> None:
        if number == 0:
            raise RPCError("no answer", RPCStatusCode.UNAVAILABLE, b"")
        done.append(number)

    with pytest.raises(RPCError, match="no answer"):
        await report._all(report_run(number) for number in range(100))
    assert done == list(range(1, 100))


def test_a_run_of_a_dead_process_is_looked_at_again_when_the_next_process_dies() -> None:
    """The server may have sent the run's next attempt to that process, which had not begun it, and so did not report it."""
    supervisor, run = _Supervisor(2, Settings()), Run("workflow", "run")
    first, second = (WorkerProcess(index, lambda *_: None, lambda *_: None) for index in (1, 2))
    supervisor._processes = {2: second}
    first.data_received(frame(Kind.RUN, 0, b'{"workflow": "workflow", "run": "run", "task": true}'))
    assert supervisor._lost_work(first, -9).active == (run,)
    assert supervisor._lost_work(second, -9).active == (run,)


class _NoServer:
    workflow_service = None


def test_a_query_does_not_take_a_run_from_the_process_that_handles_its_workflow_tasks() -> None:
    """The run's own queue at the server is that of the process which handled its last workflow task."""
    tasks, queries = (WorkerProcess(index, lambda *_: None, lambda *_: None) for index in (1, 2))
    run, body = Run("workflow", "run"), b'{"workflow": "workflow", "run": "run", "task": %s}'
    tasks.data_received(frame(Kind.RUN, 0, body % b"true"))
    queries.data_received(frame(Kind.RUN, 0, body % b"false"))
    both = (tasks, queries)
    assert LostWork.of(tasks, both, frozenset(), "killed").cached == (run,)
    queries.data_received(frame(Kind.RUN, 0, body % b"true"))
    assert LostWork.of(tasks, both, frozenset(), "killed").cached == ()
    assert LostWork.of(queries, both, frozenset(), "killed").cached == (run,)
