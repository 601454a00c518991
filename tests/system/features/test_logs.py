"""A worker's log: every line that a run causes names the run, its agent and its tool."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RetryConfig, RPCError

from mulligan.devserver import DevServer
from mulligan.observe.metrics import CORE_LOG, temporal_runtime
from mulligan.observe.telemetry import Telemetry
from mulligan.worker.logs import CoreLog
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Failure, Turn
from tests.support.own_worker import BOTH_KINDS, serving
from tests.support.tcp_proxy import tcp_proxy
from tests.support.temporal import connect_to
from tests.support.worker_process import Process, logging_worker_process

SECRET = "sesame-4711"
TURNS = [
    call("log_on_the_loop", f'{{"secret": "{SECRET}"}}'),
    Turn(calls=[("log_in_a_thread", "{}", None), ("log_and_raise", "{}", None)]),
    call("log_and_hang"),
    call("log_and_die"),
    Turn(text="done", fail_first=[Failure(status=503)]),
]


async def lines_of(process: Process) -> list[dict[str, Any]]:
    assert process.stderr is not None
    return [json.loads(line) async for line in process.stderr]


@BOTH_KINDS
async def test_each_line_that_a_run_causes_has_its_ids_agent_and_tool(lab: Lab, temporal: DevServer, kind: str) -> None:
    """From a coroutine, a thread and a workflow, by our loggers and the SDK's; a second worker logs the second attempt."""
    queue, run_id = (f"logs-{uuid.uuid4().hex[:6]}" for _ in range(2))
    lab.model.script(run_id, [*TURNS, DONE])
    handle = await lab.client.start_workflow(
        "LoggingWorkflow", f"openai-chat:{run_id}", id=run_id, task_queue=queue
    )  # fmt: skip
    module = "tests.support.logging_agent"
    async with logging_worker_process(module, queue, temporal, kind, MULLIGAN_LOG_FORMAT="json") as first:
        before = await lines_of(first)
        assert await first.wait() == -9
    async with logging_worker_process(module, queue, temporal, kind, MULLIGAN_LOG_FORMAT="json") as second:
        reading = asyncio.create_task(lines_of(second))
        assert await handle.result() == "done"
        second.terminate()
        after = await reading
    lines = [line for line in before + after if line["logger"] != "mulligan.worker"]
    ids = {(line.get("workflow_id"), line.get("run_id")) for line in lines}
    assert ids == {(run_id, handle.first_execution_run_id)}, lines
    facts = {
        (line["message"], line["level"], line.get("agent"), line.get("tool"), line.get("attempt")) for line in lines
    }
    assert {
        ("by the workflow's logger", "WARNING", None, None, None),
        ("in a workflow", "WARNING", None, None, None),
        ("in a coroutine", "WARNING", "logs", "log_on_the_loop", 1),
        ("in a thread", "WARNING", "logs", "log_in_a_thread", 1),
        ("by the SDK's logger", "WARNING", "logs", "log_in_a_thread", 1),
        ("before an error", "ERROR", "logs", "log_and_raise", 1),
        ("attempt 1", "WARNING", "logs", "log_and_die", 1),
        ("attempt 2", "WARNING", "logs", "log_and_die", 2),
    } <= facts
    [hung] = [line for line in lines if line["logger"] == "mulligan.tools"]
    assert (hung["agent"], hung["tool"], hung["activity"]) == ("logs", "log_and_hang", "call_tool")
    assert SECRET not in json.dumps(lines)


@BOTH_KINDS
@pytest.mark.parametrize("keys", ["", f"k:{base64.b64encode(b'k' * 32).decode()}"], ids=["open", "encrypted"])
async def test_the_log_of_a_worker_with_encryption_does_not_quote_what_runs_contain(
    lab: Lab, temporal: DevServer, monkeypatch: pytest.MonkeyPatch, keys: str, kind: str
) -> None:
    """Exceptions of users' code and refusals of the endpoint quote it: their types are logged, and where they were raised."""
    queue = f"leaks-{uuid.uuid4().hex[:6]}"
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", keys)
    at = Lab(await lab.another_client(), lab.model, lab.otlp, lab.telemetry, queue)
    secret = f'{{"text": "{SECRET}"}}'
    quoting = {"error": {"message": f"cannot read {SECRET}", "type": "invalid_request_error"}}
    async with logging_worker_process(
        "tests.support.leaky_agents", queue, temporal, kind, MULLIGAN_LOG_FORMAT="json"
    ) as process:
        reading = asyncio.create_task(lines_of(process))
        turns = [
            Turn(
                calls=[
                    ("quote", secret, None),
                    ("repeat", secret, None),
                    ("repeat", f'{{"guarded": "{SECRET}"}}', None),
                ]
            ),
            call("repeat", f'{{"text": "guarded {SECRET}"}}'),
            Turn(text=SECRET, fail_first=[Failure(status=503, body=f"<html>{SECRET}</html>")]),
        ]
        ran = await at.run(turns, agent="quoter", prompt=SECRET, metadata={"note": SECRET})
        assert ran.result["status"] == "completed"
        for handle in (
            await at.start([DONE], agent="quoter", metadata={"unopened": SECRET}),
            await at.start([Turn(fail_first=[Failure(status=400, body=quoting)])], agent="quoter"),
            await at.start([DONE], agent="quoter", **{SECRET: SECRET}),
            await at.start([DONE], agent="nobody"),
        ):
            with pytest.raises(WorkflowFailureError):
                await handle.result()
        stuck = await at.client.start_workflow("QuotingWorkflow", SECRET, id=f"stuck-{queue}", task_queue=queue)
        while (await stuck.describe()).raw_description.pending_workflow_task.attempt < 2:
            await asyncio.sleep(0.1)
        await stuck.terminate()
        process.terminate()
        lines = await reading
    text = json.dumps(lines)
    assert (SECRET in text) is not bool(keys), [line for line in lines if SECRET in json.dumps(line)]
    assert "leaky_agents.py" in text
    assert "RuntimeError" in text


@pytest.mark.parametrize("kind", ["ours", "own", "own, with a log of its own"])
async def test_a_failure_that_is_retried_is_one_line(lab: Lab, temporal: DevServer, kind: str) -> None:
    """Also where the program of an own worker has set up its log by itself: the SDK would write a stack trace."""
    queue = f"retried-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    environment = {"OWN_LOG": "python"} if kind.endswith("its own") else {}
    module = "tests.support.shop_agents"
    async with logging_worker_process(module, queue, temporal, kind.partition(",")[0], **environment) as process:
        assert process.stderr is not None
        reading = asyncio.create_task(process.stderr.read())
        ran = await at.run([Turn(text="done", fail_first=[Failure(status=503)])])
        process.terminate()
        lines = (await reading).decode().splitlines()
    assert ran.result["output"] == "done"
    [failed] = [line for line in lines if "temporalio.activity" in line]
    assert f"call_model of {ran.id}: " in failed
    assert not [line for line in lines if line.startswith((" ", "Traceback"))], lines


@activity.defn
async def theirs() -> None:
    raise ApplicationError("no such letter", non_retryable=True)


@workflow.defn(sandboxed=False)
class Theirs:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(theirs, start_to_close_timeout=timedelta(seconds=20))


async def test_the_sdk_writes_the_failures_of_somebodys_own_activities_as_before(
    temporal: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    """With their stack trace: the plugin shortens those of agents only."""
    queue = f"theirs-{uuid.uuid4().hex[:6]}"
    client = await connect_to(temporal)
    async with serving(
        "own",
        client,
        ["tests.support.shop_agents"],
        Telemetry(exports=False),
        queue,
        workflows=[Theirs],
        activities=[theirs],
    ):
        with pytest.raises(WorkflowFailureError):
            await client.execute_workflow(Theirs.run, id=queue, task_queue=queue)
    [record] = [each for each in caplog.records if each.name == "temporalio.activity"]
    assert record.exc_info


async def test_a_server_that_is_away_is_one_line_in_our_log_and_not_dozens(
    temporal: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The Core SDK logs each retry of each request, as a Rust structure."""
    only_once = CoreLog()
    logging.getLogger(CORE_LOG).addFilter(only_once)
    try:
        async with tcp_proxy(temporal.address) as proxy:
            client = await Client.connect(
                proxy.address,
                namespace=temporal.namespace,
                runtime=temporal_runtime({}),
                retry_config=RetryConfig(max_elapsed_time_millis=3_000),
            )
            proxy.cut()
            requests = [client.get_workflow_handle("x").describe() for _ in range(2)]
            failed = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(error) for error in failed] == [RPCError, RPCError]
        while not caplog.records:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # the SDK hands over its lines in batches
    finally:
        logging.getLogger(CORE_LOG).removeFilter(only_once)
    [line] = [record.getMessage() for record in caplog.records if record.name.startswith(CORE_LOG)]
    assert re.fullmatch(r"Temporal does not answer \(.+, [A-Z]\w+\)\. The worker tries again until it does\.", line)
