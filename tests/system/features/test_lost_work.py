"""What a supervisor reports of a dead process, to a real server. The process is this test, which polls the server as one would."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.command.v1 import (
    Command,
    ContinueAsNewWorkflowExecutionCommandAttributes,
    RequestCancelActivityTaskCommandAttributes,
    ScheduleActivityTaskCommandAttributes,
)
from temporalio.api.common.v1 import ActivityType, Payloads, WorkflowType
from temporalio.api.enums.v1 import CommandType, QueryResultType, TaskQueueKind
from temporalio.api.taskqueue.v1 import StickyExecutionAttributes, TaskQueue
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    PollActivityTaskQueueResponse,
    PollWorkflowTaskQueueRequest,
    PollWorkflowTaskQueueResponse,
    RecordActivityTaskHeartbeatRequest,
    RespondQueryTaskCompletedRequest,
    RespondWorkflowTaskCompletedRequest,
    RespondWorkflowTaskFailedRequest,
)
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from mulligan.activities.heartbeat import ended_details
from mulligan.activities.run_data import query_workflow
from mulligan.devserver import DevServer
from mulligan.supervisor import lost_work
from mulligan.supervisor.lost_work import LostWork, LostWorkReport
from mulligan.supervisor.worker_process import Attempt, WorkerProcess
from mulligan.supervisor.workflow_tasks import Run, TokenFormat
from tests.support.temporal import connect_to

DEAD = "1@dead"


class Worker:
    """Polls for the tasks of one workflow, whose activity has a minute for each attempt."""

    def __init__(self, client: Client) -> None:
        self.client, self.name = client, f"lost-{uuid.uuid4().hex[:6]}"
        self.queue = TaskQueue(name=self.name)

    async def start(self, sticky: StickyExecutionAttributes | None = None) -> Run:
        """Start the workflow and its activity. `sticky`: the queue of its next workflow tasks."""
        handle = await self.client.start_workflow("Any", id=self.name, task_queue=self.name)
        self.handle = handle
        minute = Duration(seconds=60)
        schedule = ScheduleActivityTaskCommandAttributes(
            activity_id="a", activity_type=ActivityType(name="any"), task_queue=self.queue,
            schedule_to_close_timeout=minute, start_to_close_timeout=minute, heartbeat_timeout=minute,
        )  # fmt: skip
        kind = CommandType.COMMAND_TYPE_SCHEDULE_ACTIVITY_TASK
        await self.command(Command(command_type=kind, schedule_activity_task_command_attributes=schedule), sticky)
        return Run(self.name, handle.result_run_id or "")

    async def command(self, command: Command, sticky: StickyExecutionAttributes | None = None) -> None:
        """Answer the next workflow task."""
        task = await self.workflow_task(self.queue)
        answer = RespondWorkflowTaskCompletedRequest(
            task_token=task.task_token, commands=[command], sticky_attributes=sticky
        )
        await self.client.workflow_service.respond_workflow_task_completed(answer)

    async def workflow_task(
        self, queue: TaskQueue | None = None, *, identity: str = DEAD
    ) -> PollWorkflowTaskQueueResponse:
        """The next workflow task."""
        request = PollWorkflowTaskQueueRequest(
            namespace=self.client.namespace, task_queue=queue or self.queue, identity=identity
        )
        return await self.client.workflow_service.poll_workflow_task_queue(request)

    async def attempt(self, identity: str = "2@alive") -> PollActivityTaskQueueResponse:
        """Begin the next attempt of the activity."""
        request = PollActivityTaskQueueRequest(
            namespace=self.client.namespace, task_queue=self.queue, identity=identity
        )
        return await self.client.workflow_service.poll_activity_task_queue(request)

    async def heartbeat(self, task: PollActivityTaskQueueResponse, *details: Any) -> None:
        payloads = Payloads(payloads=await self.client.data_converter.encode(details))
        request = RecordActivityTaskHeartbeatRequest(task_token=task.task_token, details=payloads)
        await self.client.workflow_service.record_activity_task_heartbeat(request)

    async def details(self, task: PollActivityTaskQueueResponse) -> list[Any]:
        return await self.client.data_converter.decode(task.heartbeat_details.payloads)


def lost_with(run: Run, *attempts: Attempt) -> LostWork:
    """What is lost with the process, if these attempts have spans that are held."""
    return LostWork(
        identity=DEAD, reason="killed by SIGKILL", attempts=attempts, in_flight=frozenset(),
        undecided=frozenset(each.number for each in attempts), not_lost=frozenset(), cached=(), active=(run,),
        token_format=None,
    )  # fmt: skip


async def test_spans_of_a_lost_attempt_are_dropped_only_if_the_next_attempt_does_not_find_them_marked_as_written(
    temporal: DevServer,
) -> None:
    """A heartbeat that the process sent in its last moment may arrive while its attempt is reported."""
    client = await connect_to(temporal)
    for arrives_before in (True, False):
        worker = Worker(client)
        run = await worker.start()
        task = await worker.attempt(DEAD)
        await worker.heartbeat(task, "of the tool", *([ended_details(1)] if arrives_before else []))

        class Report(LostWorkReport):
            async def _has_reported_its_end(self, pending: PendingActivityInfo) -> bool:
                is_seen = await super()._has_reported_its_end(pending)
                await worker.heartbeat(task, "of the tool", ended_details(1))  # noqa: B023 - not kept
                return is_seen

        token = base64.b64encode(task.task_token).decode()
        counts = await Report(client, lost_with(run, Attempt(1, token, run, "a", 1))).report()
        following = await worker.attempt()
        assert following.attempt == 2
        is_marked = ended_details(1) in (found := await worker.details(following))
        assert "of the tool" in found
        assert counts == {1: is_marked} == {1: arrives_before}
        await worker.handle.terminate()


async def test_an_activity_of_a_cancelled_run_that_no_code_of_the_dead_process_had_seen_is_reported(
    temporal: DevServer,
) -> None:
    """Its run waits for it, and would wait for a timeout."""
    client = await connect_to(temporal)
    worker = Worker(client)
    run = await worker.start()
    await worker.attempt(DEAD)
    await worker.handle.signal("cancel")
    kind, cancel = CommandType.COMMAND_TYPE_REQUEST_CANCEL_ACTIVITY_TASK, RequestCancelActivityTaskCommandAttributes
    scheduled = Command(command_type=kind, request_cancel_activity_task_command_attributes=cancel(scheduled_event_id=5))
    await worker.command(scheduled)
    await LostWorkReport(client, lost_with(run)).report()
    events = [event async for event in worker.handle.fetch_history_events()]
    [failed] = [event for event in events if event.HasField("activity_task_failed_event_attributes")]
    failure = failed.activity_task_failed_event_attributes.failure
    assert failure.application_failure_info.type == "WorkerLost"
    await worker.handle.terminate()


async def waiting_in_queue_of_dead_process(worker: Worker) -> Run:
    """A run with a workflow task that waits in the dead process's own queue."""
    name = f"{DEAD}-{worker.name}"
    own = TaskQueue(name=name, kind=TaskQueueKind.TASK_QUEUE_KIND_STICKY, normal_name=worker.name)
    sticky = StickyExecutionAttributes(worker_task_queue=own, schedule_to_start_timeout=Duration(seconds=600))
    polling = asyncio.create_task(worker.workflow_task(own))  # the server uses the queue only if somebody has polled it
    run = await worker.start(sticky)
    await worker.handle.signal("polled")
    polled = await polling  # a poll that is cancelled instead could still take the task that is to wait
    answer = RespondWorkflowTaskCompletedRequest(task_token=polled.task_token, sticky_attributes=sticky)
    await worker.client.workflow_service.respond_workflow_task_completed(answer)
    await worker.handle.signal("go")
    scheduled = [event async for event in worker.handle.fetch_history_events()][-1]
    assert scheduled.workflow_task_scheduled_event_attributes.task_queue.name == name
    return run


async def test_a_workflow_task_that_waits_in_the_queue_of_a_dead_process_goes_to_another_one(
    temporal: DevServer,
) -> None:
    """The supervisor may not know that the process had the run in its memory. The queue would be waited for in vain."""
    client = await connect_to(temporal)
    worker = Worker(client)
    run = await waiting_in_queue_of_dead_process(worker)
    async with aclosing(LostWorkReport(client, lost_with(run))) as report:
        await report.report()
        task = await worker.workflow_task()
    assert task.workflow_execution.run_id == run.run_id
    await worker.handle.terminate()


async def test_no_report_waits_for_the_poll_of_the_queue_of_a_dead_process(
    temporal: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes two seconds to find nothing. Meanwhile the spans are exported, and unseen attempts are looked for."""
    ended = asyncio.Event()
    polls: list[str] = []

    async def poll(*_: Any, **__: Any) -> bool:
        polls.append("begun")
        await ended.wait()
        polls.append("ended")
        return False

    monkeypatch.setattr(lost_work, "fail_queued_task", poll)
    client = await connect_to(temporal)
    worker = Worker(client)
    run = await waiting_in_queue_of_dead_process(worker)
    async with aclosing(LostWorkReport(client, lost_with(run))) as report:
        assert await report.report() == {}
        assert polls == ["begun"]
        ended.set()
    assert polls == ["begun", "ended"]  # a poll that is cancelled could take a task with it
    await worker.handle.terminate()


async def test_the_queue_of_a_draining_process_is_not_polled(
    temporal: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gives its tasks to another worker after 2 s, which is when the supervisor looks."""
    client = await connect_to(temporal)
    worker = Worker(client)
    run = await waiting_in_queue_of_dead_process(worker)
    polled: list[TaskQueue] = []

    async def poll(_: Client, queue: TaskQueue, **__: Any) -> bool:
        polled.append(queue)
        return False

    monkeypatch.setattr(lost_work, "fail_queued_task", poll)
    for is_draining in (False, True):
        async with aclosing(LostWorkReport(client, replace(lost_with(run), is_draining=is_draining))) as report:
            await report.look_for_unseen()
        assert len(polled) == 1
    await worker.handle.terminate()


async def test_the_first_workflow_task_of_a_continued_run_that_no_code_of_the_dead_process_had_seen_is_returned(
    temporal: DevServer,
) -> None:
    """The supervisor knows only the run before it. The task would wait for its timeout of ten seconds."""
    client = await connect_to(temporal)
    worker = Worker(client)
    run = await worker.start()
    await worker.handle.signal("go")
    kind = CommandType.COMMAND_TYPE_CONTINUE_AS_NEW_WORKFLOW_EXECUTION
    minute = Duration(seconds=60)
    attributes = ContinueAsNewWorkflowExecutionCommandAttributes(
        workflow_type=WorkflowType(name="Any"), task_queue=worker.queue, workflow_task_timeout=minute
    )
    await worker.command(Command(command_type=kind, continue_as_new_workflow_execution_command_attributes=attributes))
    lost = await worker.workflow_task()
    token_format = TokenFormat.of(lost.task_token, Run(worker.name, lost.workflow_execution.run_id))
    await LostWorkReport(client, replace(lost_with(run), token_format=token_format)).report()
    again = await worker.workflow_task()
    assert (again.workflow_execution.run_id, again.attempt) == (lost.workflow_execution.run_id, 2)
    await client.get_workflow_handle(worker.name).terminate()


async def test_the_first_workflow_task_of_a_new_run_that_no_code_of_the_dead_process_had_seen_is_returned(
    temporal: DevServer,
) -> None:
    """No process has told the supervisor of the run. The task would wait for its timeout."""
    client = await connect_to(temporal)
    known, new, of_another = Worker(client), Worker(client), Worker(client)
    run = await known.start()
    task = await known.attempt()
    token_format = TokenFormat.of(task.task_token, run)
    assert token_format is not None
    for worker in (new, of_another):
        worker.handle = await client.start_workflow(
            "Any", id=worker.name, task_queue=worker.name, task_timeout=timedelta(seconds=60)
        )
    lost = await new.workflow_task()
    assert not lost.previous_started_event_id
    await of_another.workflow_task(identity="2@alive")
    async with aclosing(LostWorkReport(client, replace(lost_with(run), token_format=token_format))) as report:
        await report.report()
        await report.look_again()
    again = await new.workflow_task()
    assert (again.workflow_execution.run_id, again.attempt) == (lost.workflow_execution.run_id, 2)
    untouched = await of_another.handle.describe()
    assert untouched.raw_description.pending_workflow_task.attempt == 1
    for worker in (known, new, of_another):
        await worker.handle.terminate()


@pytest.mark.parametrize("living_has_it", [False, True], ids=["nobody", "a living process"])
async def test_a_repeated_workflow_task_that_no_code_of_the_dead_process_had_seen_is_returned_unless_another_has_it(
    living_has_it: bool, temporal: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history does not name the worker of a task's second attempt. It would wait for its timeout."""
    monkeypatch.setattr(lost_work, "TIME_TO_COMPLETE", timedelta(seconds=5))  # much more than the first look takes
    client = await connect_to(temporal)
    worker = Worker(client)
    run = await worker.start()
    token_format = TokenFormat.of((await worker.attempt()).task_token, run)
    await worker.handle.signal("go")
    first = await worker.workflow_task()
    failed = RespondWorkflowTaskFailedRequest(namespace=client.namespace, task_token=first.task_token)
    await client.workflow_service.respond_workflow_task_failed(failed)
    lost = await worker.workflow_task()
    assert lost.attempt == 2
    asked: list[Run] = []

    def is_handled(run: Run, since: float) -> bool:
        asked.append(run)
        return living_has_it

    known = replace(lost_with(run), token_format=token_format)
    async with aclosing(LostWorkReport(client, known, is_handled)) as report:
        await report.report()
        assert not asked  # a worker that lives is given time
        await report.look_again()
    assert run in asked
    described = await worker.handle.describe()
    assert described.raw_description.pending_workflow_task.attempt == (2 if living_has_it else 3)
    await worker.handle.terminate()


async def test_what_a_draining_process_was_given_and_has_not_begun_is_returned_and_what_it_has_begun_is_not(
    temporal: DevServer,
) -> None:
    """The server may hand a task to a poll in the moment in which the worker ends it."""
    client = await connect_to(temporal)
    worker = Worker(client)
    run = await worker.start()
    task = await worker.attempt(DEAD)
    await worker.handle.signal("go")
    await worker.workflow_task()
    process = WorkerProcess(1, lambda *_: None, lambda *_: None)
    process.identity, process.token_format = DEAD, TokenFormat.of(task.task_token, run)
    process.runs[run] = time.monotonic()
    begun = {"workflow": run.workflow_id, "run": run.run_id, "attempt": 1}
    token = base64.b64encode(task.task_token).decode()
    process.attempts[1] = json.dumps({**begun, "activity": "a", "token": token}).encode()
    process.attempts[2] = json.dumps({**begun, "activity": "local", "token": ""}).encode()

    async def attempts() -> tuple[int, int]:
        async with aclosing(LostWorkReport(client, LostWork.of_draining(process, [process]))) as report:
            await report.look_for_unseen()
        described = (await worker.handle.describe()).raw_description
        return described.pending_activities[0].attempt, described.pending_workflow_task.attempt

    assert await attempts() == (1, 1)
    del process.attempts[2]  # the local activity has ended, and its workflow task has not
    assert await attempts() == (1, 2)
    del process.attempts[1]
    assert await attempts() == (2, 2)
    await worker.handle.terminate()


@pytest.mark.parametrize("is_told", [False, True], ids=["no answer for a while", "told of a death"])
async def test_an_activity_sends_its_query_again_if_the_process_that_has_it_may_have_died(
    is_told: bool, temporal: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the activity would wait for ten seconds, and then be tried again."""
    monkeypatch.setattr(query_workflow, "SECONDS_TO_SECOND_QUERIES", (60.0,) if is_told else (0.1, 60.0))
    client = await connect_to(temporal)
    worker = Worker(client)
    run = await worker.start()
    environment = ActivityEnvironment(client=client)
    environment.info = replace(environment.info, workflow_id=run.workflow_id, workflow_run_id=run.run_id)
    querying = asyncio.create_task(environment.run(query_workflow.query_this_workflow, "any", None, str))
    lost = await worker.workflow_task()
    assert lost.HasField("query")
    if is_told:
        query_workflow.send_open_queries_again()
    again = await worker.workflow_task()
    [answer] = await client.data_converter.encode(["answer"])
    await client.workflow_service.respond_query_task_completed(
        RespondQueryTaskCompletedRequest(
            namespace=client.namespace, task_token=again.task_token, query_result=Payloads(payloads=[answer]),
            completed_type=QueryResultType.QUERY_RESULT_TYPE_ANSWERED,
        )
    )  # fmt: skip
    assert await querying == "answer"
    assert not query_workflow._open
    await worker.handle.terminate()
