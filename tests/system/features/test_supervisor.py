"""`mulligan worker --processes N`: what the supervisor tells the server, and how its processes start, end and are replaced."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from temporalio.api.enums.v1 import EventType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest

from mulligan.devserver import DevServer
from tests.support.command_server import PIPE, CommandProcess, start_command
from tests.support.lab import DONE, Lab, call
from tests.support.temporal import environment_of
from tests.support.worker_process import Process

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def supervised(
    queue: str, server: DevServer, *options: str, module: str = "tests.support.shop_agents", **environ: str
) -> AsyncIterator[CommandProcess]:
    """`mulligan worker --processes 2`; killed at the end of the block if it still runs. It starts its own processes anew."""
    process = await start_command(
        *("worker", "--load", module, "--task-queue", queue), *(options or ("--processes", "2")),
        env={**os.environ, **environment_of(server), "MULLIGAN_GRACE_SECONDS": "1", **environ}, stderr=PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def line_with(process: Process, words: str) -> str:
    """The next line of its stderr that contains the words."""
    assert process.stderr is not None
    while line := (await process.stderr.readline()).decode():
        if words in line:
            return line
    raise AssertionError(f"the supervisor has ended without a line that contains {words!r}")


async def test_calls_of_a_killed_process_are_reported_as_lost_and_no_timeout_is_waited_for(
    lab: Lab, temporal: DevServer, tmp_path: Path
) -> None:
    """The tool kills its own process: once it is retried, once the model is told; each attempt has one span."""
    queue = f"supervised-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    async with supervised(queue, temporal, **lab.otlp.environment("http/protobuf")) as supervisor:
        await line_with(supervisor, "Supervising 2 worker processes")
        retried = await at.look(
            await at.start([call("now"), call("die_once"), DONE], metadata={"flag": str(tmp_path / "1")})
        )
        lost = await at.look(await at.start([call("die"), DONE], metadata={"flag": str(tmp_path / "2")}))
        assert "killed by SIGKILL" in await line_with(supervisor, "has ended")
        supervisor.terminate()
        assert await supervisor.wait() == 0
    assert [each["result"]["text"] for each in retried.calls] == ["noon", "survived"]
    assert retried.calls[1]["attempts"] == 2
    assert lost.calls[0]["result"]["error"]["kind"] == "tool_lost"
    assert "It may or may not have done its work." in lost.calls[0]["result"]["text"]
    for ran in (retried, lost):
        types = {event.event_type async for event in ran.handle.fetch_history_events()}
        assert EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT not in types
    failures = [
        event.activity_task_failed_event_attributes.failure.application_failure_info.type
        async for event in lost.handle.fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED
    ]
    assert failures == ["WorkerLost"]
    calls = []
    for ran in (retried, lost):
        ran.spans = lab.otlp.spans(trace_id=ran.result["trace_id"])
        ids = {span.span_id for span in ran.spans}
        assert len(ids) == len(ran.spans)
        assert all(span.parent_span_id in ids for span in ran.spans if span.name != "invoke_agent shop")
        calls += [
            (s.attributes["ai.toolCall.name"], s.attributes["mulligan.attempt"], s.attributes["mulligan.recovered"])
            for s in ran.spans_of("ai.toolCall")
        ]
    assert sorted(calls) == [("die", 1, True), ("die_once", 1, False), ("die_once", 2, False), ("now", 1, False)]


async def test_a_task_that_a_stopping_worker_was_given_and_did_not_begin_is_returned(
    lab: Lab, temporal: DevServer
) -> None:
    """The test polls with the process's identity, as if the server had handed the task to a poll that the process ended."""
    queue = f"supervised-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    async with supervised(queue, temporal, "--processes", "1") as supervisor:
        await line_with(supervisor, "Supervising 1 worker process")
        ran = await at.look(await at.start([call("now"), DONE]))
        [identity] = {
            event.workflow_task_started_event_attributes.identity
            async for event in ran.handle.fetch_history_events()
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED
        }
        unseen = await lab.client.start_workflow(
            "Any", id=f"{queue}-unseen", task_queue=f"{queue}-unseen", task_timeout=timedelta(seconds=60)
        )
        given = await lab.client.workflow_service.poll_workflow_task_queue(
            PollWorkflowTaskQueueRequest(
                namespace=lab.client.namespace, task_queue=TaskQueue(name=unseen.id), identity=identity
            )
        )
        assert given.workflow_execution.workflow_id == unseen.id
        supervisor.terminate()
        assert await supervisor.wait() == 0
    described = await unseen.describe()
    assert described.raw_description.pending_workflow_task.attempt == 2
    await unseen.terminate()


async def test_what_keeps_a_worker_from_starting_is_said_once_and_ends_the_supervisor(temporal: DevServer) -> None:
    for options, module, environ, sentence in (
        ((), "no.such.module", {}, "error: there is no module 'no.such.module'"),
        (("--processes", "0"), "mulligan", {}, "error: --processes is 0, but it must be from 1 to 256."),
        (("--processes", "1000"), "mulligan", {}, "error: --processes is 1000, but it must be from 1 to 256."),
        (("--with-shipped",), "mulligan", {"MULLIGAN_PROCESSES": "0"}, "error: MULLIGAN_PROCESSES is '0', but "),
    ):
        async with supervised("none", temporal, *options, module=module, **environ) as supervisor:
            _, said = await supervisor.communicate()
        assert supervisor.returncode == 2
        [line] = said.decode().splitlines()
        assert line.startswith(sentence)
