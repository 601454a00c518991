"""Playbooks of docs/playbooks.md and playbooks-workers.md on both kinds of workers: Temporal or the collector down, a blocked event loop, a model that
answers 429, a deploy that went wrong.

Lost workers, hung threads, encryption, limits, readiness and workers with other agents have tests of their own for both
kinds; a payload that is gone is in tests/live/test_hostile_payloads.py.
"""

from __future__ import annotations

import asyncio
import signal
import uuid
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle

from mulligan.devserver import DevServer, temporal_server
from tests.support.lab import DONE, Lab, call
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Failure, Turn
from tests.support.own_worker import BOTH_KINDS, KINDS
from tests.support.ports import free_ports
from tests.support.temporal import connect_to
from tests.support.worker_process import Process, logging_worker_process
from tests.system.features.test_supervisor import line_with

FAILED = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
SHOP, PEOPLE, DEPLOYED = (f"tests.support.{name}" for name in ("shop_agents", "people_agents", "deployed_workflow"))


async def log_of(worker: Process) -> str:
    """All that a worker has logged until it ends."""
    assert worker.stderr is not None
    return (await worker.stderr.read()).decode()


async def log_until_stopped(worker: Process) -> str:
    """Stop a worker with SIGTERM. It ends well; returns its log."""
    reading = asyncio.create_task(log_of(worker))
    worker.terminate()
    assert await worker.wait() == 0
    return await reading


async def test_workers_go_on_when_temporal_is_back(model: OpenAIServer, tmp_path: Path) -> None:
    """They stay up without Temporal. The tool that ran is reported as lost, although it has done its work; the run ends well."""
    [port], go, database = free_ports(1), tmp_path / "go", tmp_path / "temporal.db"
    async with AsyncExitStack() as stack:
        async with temporal_server(port=port, db=database) as server:
            workers = [
                await stack.enter_async_context(logging_worker_process(SHOP, kind, server, kind, **model.environment()))
                for kind in KINDS
            ]
            for kind in KINDS:
                await _until_in_tool(await _start(model, server, kind, go))
        go.touch()  # the tools end while there is no server to take their results
        for worker in workers:
            await line_with(worker, "Temporal does not answer")
        assert [worker.returncode for worker in workers] == [None, None]
        # Whichever comes first at the server that is back decides: here it is the end of the time without a heartbeat.
        for worker in workers:
            stack.callback(_resume, worker)
            worker.send_signal(signal.SIGSTOP)
        async with temporal_server(port=port, db=database) as server:
            client = await connect_to(server)
            for kind in KINDS:
                await _until_event(client.get_workflow_handle(kind), EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT)
            for kind, worker in zip(KINDS, workers, strict=True):
                _resume(worker)
                handle = client.get_workflow_handle(kind)
                assert (await handle.result())["output"] == "done"
                [step, _] = (await handle.query("steps"))["steps"]
                assert step["tool_calls"][0]["result"]["error"]["kind"] == "tool_lost"
                log = await log_until_stopped(worker)
                assert "Temporal does not answer" not in log, "it is said once"
                assert "Traceback" not in log


def _resume(worker: Process) -> None:
    if worker.returncode is None:
        worker.send_signal(signal.SIGCONT)


async def _until_event(handle: WorkflowHandle[Any, Any], kind: EventType.ValueType) -> None:
    while kind not in [event.event_type for event in (await handle.fetch_history()).events]:
        await asyncio.sleep(0.1)


async def _start(model: OpenAIServer, server: DevServer, name: str, go: Path) -> Any:
    """A run whose tool waits for a file."""
    model.script(name, [call("wait_for_file"), DONE])
    given: dict[str, Any] = {"agent": "shop", "prompt": "Wait.", "model": f"openai-chat:{name}"}
    given |= {"metadata": {"file": str(go)}}
    return await (await connect_to(server)).start_workflow("AgentWorkflow", given, id=name, task_queue=name)


async def _until_in_tool(handle: Any) -> None:
    while (await handle.query("progress"))["running"] != ["wait_for_file"]:
        await asyncio.sleep(0.1)


@BOTH_KINDS
async def test_a_blocked_event_loop_is_named_and_other_calls_go_on(lab: Lab, temporal: DevServer, kind: str) -> None:
    """The model is told of the time limit; another loop takes over."""
    queue = f"blocked-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    async with logging_worker_process(SHOP, queue, temporal, kind) as worker:
        ran = await at.run([call("hang_loop"), call("refuse"), DONE])
        log = await log_until_stopped(worker)
    assert [each["result"]["error"]["kind"] for each in ran.calls] == ["tool_timeout", "tool_error"]
    assert ran.result["output"] == "done"
    assert "The tools' event loop is blocked by the `async def` function hang_loop; another one takes over." in log


@BOTH_KINDS
async def test_a_model_that_answers_429_slows_the_worker_down_and_fails_no_run(
    lab: Lab, temporal: DevServer, kind: str
) -> None:
    """The limit is logged once, whichever run has met it, and no failure of a call beside it has a stack trace."""
    queue, name = (f"limited-{uuid.uuid4().hex[:6]}" for _ in range(2))
    refused = Failure(status=429, headers={"Retry-After": "1"})
    lab.model.script(name, [Turn(text="done", fail_first=[refused, refused])])
    client, given = lab.client, {"agent": "desk", "model": f"openai-chat:{name}"}
    async with logging_worker_process(PEOPLE, queue, temporal, kind) as worker:
        handles = [
            await client.start_workflow(
                "AgentWorkflow", {**given, "prompt": f"Question {n}."}, id=f"{queue}-{n}", task_queue=queue
            )
            for n in range(4)
        ]
        results = await asyncio.gather(*(handle.result() for handle in handles))
        log = await log_until_stopped(worker)
    assert [result["output"] for result in results] == ["done"] * 4
    assert log.count(f"openai-chat:{name} limits this worker, which sends no request for 1 s") == 1
    assert "Traceback" not in log


@BOTH_KINDS
async def test_a_collector_that_is_down_is_named_in_the_log_and_fails_no_run(
    lab: Lab, temporal: DevServer, kind: str
) -> None:
    queue = f"unseen-{uuid.uuid4().hex[:6]}"
    [port] = free_ports(1)
    lab.model.script(queue, [call("now"), DONE])
    given = {"agent": "shop", "prompt": "What time is it?", "model": f"openai-chat:{queue}"}
    endpoint = f"http://127.0.0.1:{port}"
    async with logging_worker_process(SHOP, queue, temporal, kind, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint) as worker:
        handle = await lab.client.start_workflow("AgentWorkflow", given, id=queue, task_queue=queue)
        assert (await handle.result())["output"] == "done"
        log = await log_until_stopped(worker)
    assert "Failed to export traces" in log
    assert "Traceback" not in log


@BOTH_KINDS
async def test_a_deploy_that_does_not_match_its_open_runs_is_rolled_back(
    lab: Lab, temporal: DevServer, tmp_path: Path, kind: str
) -> None:
    """Such a run stays open, with the failed task in its history. With the build before it goes on, and nothing ran twice."""
    queue, noted = f"deployed-{uuid.uuid4().hex[:6]}", tmp_path / "noted"
    build = partial(logging_worker_process, DEPLOYED, queue, temporal, kind, NOTED=str(noted))
    async with build() as good:
        handle = await lab.client.start_workflow("Deployed", id=queue, task_queue=queue)
        while "It is noted." not in str((await handle.query("messages"))["messages"]):
            await asyncio.sleep(0.1)
        await log_until_stopped(good)
    await handle.signal("go_on")
    async with build(DEPLOYED="bad") as bad:
        await _until_event(handle, FAILED)
        log = await log_until_stopped(bad)
    assert "Nondeterminism error" in log
    assert (await handle.describe()).status == WorkflowExecutionStatus.RUNNING
    async with build() as rolled_back:
        assert await handle.result() == "It is noted."
        await log_until_stopped(rolled_back)
    assert noted.read_text() == "noted\n"
