"""`mulligan show --trace` with a real Jaeger: the same calls as in the reading of the run, with more details."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from mulligan.devserver import DevServer, temporal_server
from mulligan.ended_runs.query_interceptor import with_ended_runs
from mulligan.observe.telemetry import Telemetry
from mulligan.trace_view import jaeger as source
from mulligan.trace_view.run_trace import RunTrace, run_trace
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.command_fixtures import Outcome, command
from tests.support.jaeger_server import JaegerServer
from tests.support.lab import DONE, call
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Failure, Turn
from tests.support.temporal import connect_to, environment_of
from tests.support.worker_process import worker_process

QUEUE, NOWHERE = "show-trace", "http://127.0.0.1:1"


@pytest.fixture(scope="module")
async def served(temporal: DevServer, model: OpenAIServer, jaeger: JaegerServer) -> AsyncIterator[Any]:
    """A worker that exports to Jaeger; yields a client of its server."""
    async with worker_process("tests.support.shop_agents", QUEUE, temporal, **jaeger.environment()) as process:
        yield await connect_to(temporal)
        process.terminate()
        assert await process.wait() == 0


async def show(temporal: DevServer, jaeger: JaegerServer, *words: str) -> Outcome:
    program = str(Path(sys.executable).parent / "mulligan")
    env = {**os.environ, **environment_of(temporal), "MULLIGAN_JAEGER_URL": jaeger.query_url}
    return await command(program, "show", *words, "--trace", env=env)


async def in_jaeger(client: Any, run_id: str, jaeger: JaegerServer, spans: int) -> RunTrace:
    """The trace, as soon as it has that many spans."""
    while True:
        found = await run_trace(client, run_id, jaeger.query_url, is_open=False)
        if found is not None and found.source == "jaeger" and len(found.spans) >= spans:
            return found
        await asyncio.sleep(0.2)


async def start(client: Any, model: OpenAIServer, turns: list[Turn], **given: Any) -> Any:
    run_id = f"jaeger-{uuid.uuid4().hex[:8]}"
    model.script(run_id, turns)
    given = {"agent": "shop", "prompt": "Go.", "model": f"openai-chat:{run_id}", **given}
    return await client.start_workflow("AgentWorkflow", given, id=run_id, task_queue=QUEUE)


async def test_the_trace_from_jaeger_has_the_calls_of_the_run_once(
    served: Any, temporal: DevServer, model: OpenAIServer, jaeger: JaegerServer
) -> None:
    """Spans are compared by id. Only Jaeger has token counts and the attempts before the last, which are lines below their call."""
    flaky = Turn(calls=[("flaky", "{}", None), ("clik", "{}", None)], fail_first=[Failure(status=500)])
    handle = await start(served, model, [flaky, call("click", '{"element": "#a"}'), DONE])
    await handle.result()
    # The root, the end, three answers and one failure of the model, `flaky` three times, and two calls.
    by_jaeger = await in_jaeger(served, handle.id, jaeger, 11)
    by_run = await run_trace(served, handle.id, NOWHERE, is_open=False)
    assert by_run is not None
    assert (len(by_jaeger.spans), len(by_run.spans)) == (11, 8)
    theirs = {span.span_id: span for span in by_jaeger.spans}
    for span in by_run.spans:
        same = theirs[span.span_id]
        assert (span.name, span.parent_id) == (same.name, same.parent_id)
        if span.name == "ai.toolCall":
            assert (span.is_error, span.attempt) == (same.is_error, same.attempt)
    ran = await show(temporal, jaeger, handle.id)
    link = f"trace     {jaeger.query_url}/trace/{by_jaeger.trace_id}\n"
    assert (ran.code, ran.err) == (0, link)
    assert f"11 spans, 4 errors, from Jaeger at {jaeger.query_url}\n" in ran.out
    assert "ai.toolCall flaky  attempt 3" in ran.out
    assert ran.out.count("ai.toolCall flaky") == 1
    assert "attempt 2: " in ran.out
    answer = json.loads((await show(temporal, jaeger, handle.id, "--json")).out)
    assert answer["source"] == "jaeger"
    tokens = [span["attributes"].get("gen_ai.usage.input_tokens") for span in answer["spans"]]
    assert 10 in tokens


async def test_a_trace_missing_in_jaeger_is_drawn_from_the_run(
    served: Any, temporal: DevServer, model: OpenAIServer, jaeger: JaegerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heading says so."""
    trace_id = uuid.uuid4().hex
    handle = await start(served, model, [DONE], traceparent=f"00-{trace_id}-{'1' * 16}-00")
    await handle.result()
    ran = await show(temporal, jaeger, handle.id)
    assert (ran.code, ran.err) == (0, f"trace     {jaeger.query_url}/trace/{trace_id}\n")
    assert f"from the run's events (Jaeger at {jaeger.query_url} does not have it)" in ran.out
    # Without a setting Jaeger's default address is tried.
    monkeypatch.setattr(source, "DEFAULT_URL", jaeger.query_url)
    found = await run_trace(served, handle.id, "", is_open=False)
    assert found is not None
    assert jaeger.query_url in found.origin


async def test_running_calls_missing_in_jaeger_are_added_from_the_run(
    served: Any, temporal: DevServer, model: OpenAIServer, jaeger: JaegerServer
) -> None:
    """Spans that have ended are from Jaeger."""
    handle = await start(served, model, [call("now"), call("wait_for_file"), DONE], metadata={"file": "/nowhere"})
    while "ai.toolCall wait_for_file  running" not in (ran := await show(temporal, jaeger, handle.id)).out:
        await asyncio.sleep(0.2)
    while f"from Jaeger at {jaeger.query_url}; what runs now, from the run's events" not in ran.out:
        ran = await show(temporal, jaeger, handle.id)
    assert ran.code == 0
    assert "━▶" in ran.out
    await handle.terminate()


async def test_a_run_of_hundreds_of_steps_is_drawn_one_line_a_hundred_steps(
    served: Any, temporal: DevServer, model: OpenAIServer, jaeger: JaegerServer
) -> None:
    """With their errors; `--all` draws every span."""
    turns = [call("clik") if step == 150 else call("now") for step in range(1, 251)]
    handle = await start(served, model, [*turns, DONE], max_steps=300)
    await handle.result()
    found = await in_jaeger(served, handle.id, jaeger, 505)
    assert len(found.spans) == 505
    ran = await show(temporal, jaeger, handle.id)
    lines = ran.out.splitlines()
    assert len(lines) < 60
    assert sum("agent.steps" in line for line in lines) == 2
    assert sum("ERROR unknown_tool  recovered" in line for line in lines) == 1
    assert any("agent.steps  … steps 201 to 251, 101 spans" in line for line in lines)
    whole = await show(temporal, jaeger, handle.id, "--all")
    assert len(whole.out.splitlines()) == 505 + 2


async def is_there(client: Client, run: WorkflowExecution) -> bool:
    try:
        await client.get_workflow_handle(run.workflow_id, run_id=run.run_id).describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


async def test_a_chain_whose_first_run_was_deleted_is_drawn_whole(model: OpenAIServer) -> None:
    """As after the retention period. A system test, because the server deletes slowly."""
    # The server deletes a run after saving that its end was processed: twice a minute by default.
    often = [f'history.{queue}ProcessorUpdateAckInterval="1s"' for queue in ("transfer", "visibility")]
    async with temporal_server(dynamic_config=["limit.historyCount.suggestContinueAsNew=60", *often]) as server:
        client = await connect_to(server)
        async with running_worker(client, load(["tests.support.shop_agents"]), Telemetry(exports=False), QUEUE):
            handle = await start(client, model, [*[call("now")] * 25, DONE], max_steps=100)
            await handle.result()
        client = with_ended_runs(client)
        whole = await run_trace(client, handle.id, NOWHERE, is_open=False)
        first = WorkflowExecution(workflow_id=handle.id, run_id=handle.first_execution_run_id)
        await client.workflow_service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(namespace=server.namespace, workflow_execution=first)
        )
        while await is_there(client, first):
            await asyncio.sleep(0.1)
        left = await run_trace(client, handle.id, NOWHERE, is_open=False)
    assert whole is not None
    assert left is not None
    assert left.trace_id == whole.trace_id
    assert len(left.spans) > 50
    assert left.spans == whole.spans
