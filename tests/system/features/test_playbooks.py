"""Playbooks of docs/operating.md on both kinds of workers: Temporal or the collector down, a blocked event loop, a model that
answers 429, a deploy that went wrong.

Lost workers, hung threads, encryption, limits, readiness and workers with other agents have tests of their own for both
kinds; a payload that is gone is in tests/live/test_hostile_payloads.py.
"""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus

from mulligan.devserver import DevServer, temporal_server
from tests.live.conftest import DONE, Lab, call
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Failure, Turn
from tests.support.own_worker import BOTH_KINDS
from tests.support.ports import free_ports
from tests.support.temporal import connect_to
from tests.support.worker_process import Process, logging_worker_process

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


@BOTH_KINDS
async def test_a_worker_goes_on_when_temporal_is_back(model: OpenAIServer, tmp_path: Path, kind: str) -> None:
    """It stays up without Temporal. The tool that ran is reported as lost, although it has done its work; the run ends well."""
    [port], go = free_ports(1), tmp_path / "go"
    model.script("outage", [call("wait_for_file"), DONE])
    given: dict[str, Any] = {"agent": "shop", "prompt": "Wait.", "model": "openai-chat:outage"}
    given |= {"metadata": {"file": str(go)}}
    database = tmp_path / "temporal.db"
    async with temporal_server(port=port, db=database) as server:
        working = logging_worker_process(SHOP, "outage", server, kind, **model.environment())
        worker = await working.__aenter__()
        handle = await (await connect_to(server)).start_workflow("AgentWorkflow", given, id="r", task_queue="outage")
        while (await handle.query("progress"))["running"] != ["wait_for_file"]:
            await asyncio.sleep(0.1)
    go.touch()  # the tool ends while there is no server to take its result
    await asyncio.sleep(9)  # longer than a call may be without a heartbeat
    assert worker.returncode is None
    async with temporal_server(port=port, db=database) as server:
        handle = (await connect_to(server)).get_workflow_handle("r")
        assert (await handle.result())["output"] == "done"
        [step, _] = (await handle.query("steps"))["steps"]
        assert step["tool_calls"][0]["result"]["error"]["kind"] == "tool_lost"
        log = await log_until_stopped(worker)
        await working.__aexit__(None, None, None)
    assert log.count("Temporal does not answer") == 1
    assert "Traceback" not in log


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
        while FAILED not in [event.event_type for event in (await handle.fetch_history()).events]:
            await asyncio.sleep(0.1)
        log = await log_until_stopped(bad)
    assert "Nondeterminism error" in log
    assert (await handle.describe()).status == WorkflowExecutionStatus.RUNNING
    async with build() as rolled_back:
        assert await handle.result() == "It is noted."
        await log_until_stopped(rolled_back)
    assert noted.read_text() == "noted\n"
