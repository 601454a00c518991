"""What viewers of traces show of runs, read by their APIs and compared with the runs: Phoenix, MLflow, and Jaeger as docs/traces.md says."""

from __future__ import annotations

import asyncio
import re
import shlex
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from mulligan.devserver import DevServer
from mulligan.observe.trace_ids import trace_id_of_run
from tests.support.jaeger_server import JaegerServer, attributes
from tests.support.temporal import connect_to
from tests.support.trace_viewers import Phoenix, ShownTrace, Viewer, mlflow, phoenix
from tests.support.worker_process import logging_worker_process, worker_process

ROOT = Path(__file__).parent.parent.parent
AGENTS = "tests.support.viewed_agents"
PICTURE = ROOT / "docs/images/trace-phoenix.png"

ERRORS = {"recovers": 1, "fails": 2, "limited": 0, "asks": 0, "delegates": 1}
"""Spans that are errors, by agent: one for a recovered call; the call that fails a run, and its `agent.finish`."""
DIRECTIONS = "input", "output"


def documented(page: str, mentions: str) -> dict[str, str]:
    """The environment of the worker in the line of a page that mentions something."""
    lines = (ROOT / page).read_text().replace("\\\n", " ").splitlines()
    [line] = [line for line in lines if line.startswith("OTEL_") and mentions in line]
    words = shlex.split(line, comments=True)
    return dict(word.split("=", 1) for word in words[: words.index("uv")])


def failed_runs(viewer: str) -> str:
    """The filter that docs/traces.md names."""
    [written] = re.findall(rf"`([^`]*)`\s+in\s+{viewer}\b", (ROOT / "docs/traces.md").read_text())
    return str(written)


async def run(client: Client, agent: str, queue: str) -> tuple[WorkflowHandle[Any, Any], dict[str, Any]]:
    """A run to its end; and what it says of itself."""
    given = {"agent": agent, "prompt": "Where is order 7?"}
    handle = await client.start_workflow("AgentWorkflow", given, id=f"{queue}-{agent}", task_queue=queue)
    if agent == "asks":
        while not (waiting := await handle.query("pending")):
            await asyncio.sleep(0.1)
        await handle.execute_update("decide", {"call_id": waiting[0]["call_id"], "decision": "approve"})
    try:
        await handle.result()
    except WorkflowFailureError:
        assert agent == "fails"
    return handle, await handle.query("progress")


async def shown(viewer: Viewer, trace_id: str, by: str, errors: int, tokens: tuple[int, int]) -> ShownTrace:
    """The trace as soon as the viewer has all of it; what it has in the end otherwise."""
    trace = None
    for _ in range(240):
        trace = await viewer.trace(trace_id, by)
        if trace and (trace.errors, trace.tokens) == (errors, tokens):
            break
        await asyncio.sleep(0.5)
    assert trace is not None
    return trace


VIEWERS: dict[str, Callable[[Path], AbstractAsyncContextManager[Viewer]]] = {"Phoenix": phoenix, "MLflow": mlflow}


@pytest.fixture(scope="module", params=VIEWERS)
async def viewer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Viewer]:
    """One for all tests of the file: it takes many seconds to start."""
    async with VIEWERS[request.param](tmp_path_factory.mktemp("viewer")) as running:
        yield running


async def test_a_viewer_shows_each_run_as_it_was(viewer: Viewer, temporal: DevServer) -> None:
    """A run's tokens are counted once, those of sub-agents too; a failed run, and no other one, is found as failed."""
    queue = f"viewed-{uuid.uuid4().hex[:6]}"
    client = await connect_to(temporal)
    name = type(viewer).__name__
    environment = documented("docs/traces.md", f"# {name}")
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = viewer.otlp_url
    async with worker_process(AGENTS, queue, temporal, **environment):
        runs = {agent: await run(client, agent, queue) for agent in ERRORS}
    traces = {}
    for agent, (handle, progress) in runs.items():
        trace_id = trace_id_of_run(handle.id, handle.first_execution_run_id or "")
        tokens = progress["usage"]["input_tokens"], progress["usage"]["output_tokens"]
        trace = await shown(viewer, trace_id, failed_runs(name), ERRORS[agent], tokens)
        traces[agent] = trace
        status = "ERROR" if ERRORS[agent] and name == "Phoenix" else "OK"
        assert trace == ShownTrace(status, f"invoke_agent {agent}", tokens, handle.id, ERRORS[agent], agent == "fails")
    assert [agent for agent, trace in traces.items() if trace.failed] == ["fails"]
    for agent, trace in traces.items():
        print(f"{name}: {agent}: {trace}")


@pytest.mark.parametrize("viewer", ["Phoenix"], indirect=True)
async def test_phoenix_shows_what_the_model_was_sent_and_wrote(viewer: Phoenix, temporal: DevServer) -> None:
    """With content, its pages have the messages and calls of each request, and once a run the instructions and the tools."""
    queue = f"content-{uuid.uuid4().hex[:6]}"
    client = await connect_to(temporal)
    environment = documented("docs/traces.md", "# Phoenix")
    environment["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "true"
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = viewer.otlp_url
    async with worker_process(AGENTS, queue, temporal, **environment):
        handle, _ = await run(client, "recovers", queue)
        messages = (await handle.query("messages"))["messages"]
    spans: list[tuple[str, dict[str, Any]]] = []
    while "agent.finish" not in dict(spans):
        spans = await viewer.attributes(trace_id_of_run(handle.id, handle.first_execution_run_id or ""))
        await asyncio.sleep(0.5)
    chats = [attributes["llm"] for name, attributes in spans if name.startswith("chat ")]
    last = max(chats, key=lambda each: len(each["input_messages"]))
    sent = [each["message"] for each in last["input_messages"]]
    assert [each["role"] for each in sent] == [each["role"] for each in messages[:-1]]
    assert sent[0]["content"] == "Where is order 7?"
    made = [call["name"] for each in messages for call in each.get("tool_calls", [])]
    called = [call["tool_call"]["function"]["name"] for each in sent for call in each.get("tool_calls", [])]
    assert called == made == ["look_up", "look_up"]
    assert [each["message"]["content"] for each in last["output_messages"]] == ["It is on its way."]
    root = dict(spans)["invoke_agent recovers"]["llm"]
    assert root["input_messages"][0]["message"] == {"role": "system", "content": "Find orders."}
    [tool] = root["tools"]
    assert "look_up" in tool["tool"]["json_schema"]


async def test_screenshots(temporal: DevServer, chromium: Browser, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """The picture in docs/traces.md exists; `make screenshots` takes it again. (The Jaeger of these tests has no pages.)"""
    if not pytestconfig.getoption("--write-docs"):
        assert "](images/trace-phoenix.png)" in (ROOT / "docs/traces.md").read_text()
        assert PICTURE.exists()
        return
    queue = f"support-{uuid.uuid4().hex[:6]}"
    client = await connect_to(temporal)
    environment = documented("docs/traces.md", "# Phoenix") | {
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"
    }
    async with phoenix(tmp_path) as viewer:
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = viewer.otlp_url
        async with worker_process(AGENTS, queue, temporal, **environment):
            handle, progress = await run(client, "recovers", queue)
        tokens = progress["usage"]["input_tokens"], progress["usage"]["output_tokens"]
        trace_id = trace_id_of_run(handle.id, handle.first_execution_run_id or "")
        await shown(viewer, trace_id, failed_runs("Phoenix"), ERRORS["recovers"], tokens)
        page = await chromium.new_page(viewport={"width": 1280, "height": 720})
        await page.goto(f"{viewer.url}/redirects/traces/{trace_id}")
        await page.get_by_text("agent.finish").first.wait_for()
        await page.get_by_text("ai.toolCall").first.click()  # the call that was recovered
        await page.wait_for_timeout(2_000)
        await page.screenshot(path=PICTURE)


async def test_the_pages_line_works_with_jaeger_as_it_is(jaeger: JaegerServer, temporal: DevServer) -> None:
    """The worker has nothing to warn of, and Jaeger has each run as it was: its tokens, its failures, and whether it failed."""
    queue = f"readme-{uuid.uuid4().hex[:6]}"
    client = await connect_to(temporal)
    environment = documented("docs/traces.md", "Jaeger")
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://localhost:4317"
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = jaeger.otlp_url
    async with logging_worker_process(AGENTS, queue, temporal, **environment) as process:
        runs = {agent: await run(client, agent, queue) for agent in ERRORS}
        process.terminate()
        assert process.stderr
        told = (await process.stderr.read()).decode()
    for agent, (handle, progress) in runs.items():
        spans = await jaeger.spans(trace_id_of_run(handle.id, handle.first_execution_run_id or ""))
        failed = [span["name"] for span in spans if span.get("status", {}).get("code")]
        tokens = [sum(attributes(span).get(f"gen_ai.usage.{each}_tokens", 0) for span in spans) for each in DIRECTIONS]
        assert tokens == [progress["usage"][f"{each}_tokens"] for each in DIRECTIONS]
        assert (len(failed), "agent.finish" in failed) == (ERRORS[agent], agent == "fails")
        assert "agent.finish" in [span["name"] for span in spans]
        print(f"Jaeger: {agent}: {len(spans)} spans, {len(failed)} errors, tokens {tokens}")
    assert "WARNING" not in told
    assert "ERROR" not in told
