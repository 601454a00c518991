"""`mulligan show --trace` without a Jaeger: the command, and what needs a server of the reading of a run."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from mulligan import Agent, ToolError, tool
from mulligan.client.start_run import begin_run
from mulligan.devserver import DevServer, temporal_server
from mulligan.ended_runs.query_interceptor import with_ended_runs
from mulligan.observe.telemetry import Telemetry
from mulligan.run_input import RunInput
from mulligan.trace_view.run_trace import RunTrace, run_trace
from mulligan.trace_view.trace_span import TraceSpan
from mulligan.worker.loading import load, load_agents
from mulligan.worker.wiring import running_worker
from tests.support.command_fixtures import QUEUE, Run
from tests.support.lab import DONE, Lab, call
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn
from tests.support.otlp_receiver import OtlpReceiver, Span
from tests.support.temporal import connect_to, environment_of

NO_JAEGER = "http://127.0.0.1:1"
ADA = '{"customer": "Ada"}'
Process = asyncio.subprocess.Process


async def show_trace(mulligan: Run, *words: str, **env: str) -> tuple[int, str, str]:
    ran = await mulligan("show", *words, "--trace", **{"MULLIGAN_JAEGER_URL": NO_JAEGER, **env})
    return ran.code, ran.out, ran.err


async def test_show_trace_draws_the_tree_of_the_run_without_jaeger(mulligan: Run, worker: Process) -> None:
    """The tree has errors and a bar for each span, without colours in a pipe; also as JSON."""
    await mulligan("start", "support", "What has Ada ordered?", "--id", "t-1", "--wait")
    code, out, err = await show_trace(mulligan, "t-1")
    assert code == 0
    assert err.startswith("Jaeger at http://127.0.0.1:1 does not answer: ")
    head, root, *below = out.splitlines()
    assert head.startswith("trace ")
    assert head.endswith("7 spans, 1 error, from the run's events (Jaeger at http://127.0.0.1:1 does not answer)")
    assert root.startswith("└── invoke_agent support")
    assert below[0].startswith("    ├── chat support  ")
    assert below[1].startswith("    ├── ai.toolCall search_orders  ERROR invalid_arguments  recovered")
    assert "so it was not run: - `customer`: is required, but missing" in below[2]
    assert below[-1].startswith("    └── agent.finish  completed")
    assert all("━" in line for line in [root, below[0], below[1], *below[3:]])
    assert "\x1b" not in out
    code, out, _ = await show_trace(mulligan, "t-1", "--json")
    answer = json.loads(out)
    result = json.loads((await mulligan("show", "t-1", "--json")).out)["result"]
    assert (code, answer["id"], answer["source"], answer["trace_id"]) == (0, "t-1", "run", result["trace_id"])
    [failed] = [span for span in answer["spans"] if span["is_error"]]
    assert failed["attributes"]["error.type"] == "invalid_arguments"


async def test_show_trace_has_the_exit_codes_of_show_for_failed_and_missing_runs(
    mulligan: Run, worker: Process, temporal: DevServer
) -> None:
    """1 and 2."""
    await mulligan("start", "slow", "Go", "--model", "scripted:broken", "--id", "t-3", "--wait")
    code, out, _ = await show_trace(mulligan, "t-3")
    assert code == 1
    assert "ai.toolCall sarch_orders  ERROR unknown_tool" in out
    assert "recovered" not in out
    assert "agent.finish  ERROR unknown_tool  failed" in out
    client = await connect_to(temporal)  # the command refuses such an agent
    with pytest.raises(WorkflowFailureError):
        await (await begin_run(client, RunInput(agent="nobody", prompt="Go"), "t-4", QUEUE)).result()
    assert await show_trace(mulligan, "t-4") == (1, "", "t-4 has no trace yet: no worker has opened the run.\n")
    code, out, err = await show_trace(mulligan, "nobody-at-all")
    assert (code, out) == (2, "")
    assert "there is no run 'nobody-at-all'" in err
    alone = await mulligan("show", "t-3", "--all")
    assert (alone.code, alone.out) == (2, "")
    assert "--all prints the whole trace; add --trace" in alone.err


NONSENSE = {
    "a page": ("200 OK", "<html>"),
    "another API": ("200 OK", '{"result": [1]}'),
    "an error": ("503 Service Unavailable", '{"error": "later"}'),
    "no span ids": ("200 OK", '{"result": {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}]}]}]}}'),
}


@asynccontextmanager
async def answering(status: str, body: str) -> AsyncIterator[str]:
    """An HTTP server that returns the same response to every request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("what", NONSENSE)
async def test_an_address_that_is_no_jaeger_is_reported_and_the_run_is_drawn(
    mulligan: Run, worker: Process, what: str
) -> None:
    """On stderr, without the password of the URL."""
    run_id = f"t-nonsense-{what.replace(' ', '-')}"
    await mulligan("start", "support", "Go", "--id", run_id, "--wait")
    async with answering(*NONSENSE[what]) as address:
        code, out, err = await show_trace(mulligan, run_id, MULLIGAN_JAEGER_URL=f"http://ada:sesame@{address}")
    assert code == 0
    assert f"from the run's events (Jaeger at http://{address} cannot be understood)" in out
    assert f"what answers at http://{address} does not answer as Jaeger does (status " in err
    assert "sesame" not in out + err
    assert "Traceback" not in err


@tool(local=True)
def add(a: int, b: int) -> int:
    """Add, within the workflow task."""
    if a >= 0:
        return a + b
    raise ToolError("Only what is positive.")


near = Agent(name="near", model="openai-chat:nobody", tools=[add])
SUB_AGENTS = [
    ("researcher", '{"prompt": "What?"}', None),
    ("researcher", '{"prompt": "note 2"}', None),
    ("lazy", '{"prompt": "What?"}', None),
]


def of_worker(spans: Sequence[Span]) -> dict[str, Any]:
    """The facts of spans that a reading must agree on, but for attempts of calls before their last."""
    return {span.span_id: (span.parent_span_id, span.name, span.status == "ERROR") for span in spans}


def of_reading(spans: Sequence[TraceSpan]) -> dict[str, Any]:
    return {span.span_id: (span.parent_id, span.name, span.is_error) for span in spans}


async def read(lab: Lab, run_id: str, *, is_open: bool = False) -> RunTrace:
    found = await run_trace(lab.client, run_id, NO_JAEGER, is_open=is_open)
    assert found is not None
    return found


@pytest.fixture(scope="module")
async def lab(temporal: DevServer) -> AsyncIterator[Lab]:
    """Like that of the live tests, on task queues of these tests, which end with them."""
    client, queue = await connect_to(temporal), "traced"
    modules = [
        f"tests.support.{name}"
        for name in (
            "shop_agents",
            "structured_output_agents",
            "remote_tool_agents",
            "sequential_turns_workflow",
            "compaction_agents",
            "people_agents",
            "sub_agent_teams",
        )
    ]
    with pytest.MonkeyPatch.context() as environ:
        async with OpenAIServer() as model, OtlpReceiver() as otlp:
            for name, value in {**model.environment(), **otlp.environment()}.items():
                environ.setenv(name, value)
            telemetry = Telemetry()
            async with (
                running_worker(client, load(modules), telemetry, queue),
                running_worker(client, load(["tests.support.gpu_tools"]), telemetry, "gpu"),
                running_worker(client, load_agents([near], []), telemetry, "near"),
            ):
                yield Lab(client, model, otlp, telemetry, queue)
            telemetry.shutdown()


async def test_runs_of_sub_agents_are_in_the_trace_of_the_calling_run(lab: Lab) -> None:
    """At any depth, each below the run that made the call."""
    turns = [Turn(calls=SUB_AGENTS), call("chief", '{"prompt": "deep What?"}'), DONE]
    ran = await lab.run(turns, agent="lead")
    found = await read(lab, ran.id)
    assert {span.trace_id for span in ran.spans} == {found.trace_id}
    assert of_reading(found.spans) == of_worker(ran.spans)
    assert len([span for span in found.spans if span.name.startswith("invoke_agent")]) > 4


async def test_running_sub_agents_are_in_the_trace_and_have_an_end_after_a_cancellation(
    lab: Lab, tmp_path: Path
) -> None:
    asked = [
        ("researcher", json.dumps({"prompt": f"wait {tmp_path}/never"}), "a"),
        ("researcher", '{"prompt": "?"}', "b"),
    ]
    handle = await lab.start([Turn(calls=asked)], agent="lead")
    while sorted(await now_running(lab, handle.id)) != ["ai.toolCall researcher", "ai.toolCall wait_for_file"]:
        await asyncio.sleep(0.1)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    found = await read(lab, handle.id)
    assert all(span.end is not None for span in found.spans)
    ended = [span.attributes.get("error.type") for span in found.spans if span.name == "ai.toolCall" and span.is_error]
    assert ended == ["cancelled", "cancelled"]


async def test_turns_of_several_agents_are_roots_of_one_trace(lab: Lab) -> None:
    """In a user's own workflow. How each turn ended is in it, too."""
    run_id = f"own-{uuid.uuid4().hex[:8]}"
    lab.model.script(run_id, [call("now"), Turn(text="It is here."), call("clik"), Turn(text="So is 8.")])
    lab.model.script(run_id + "-b", [DONE])
    models = [f"openai-chat:{run_id}", f"openai:{run_id}-b"]
    handle = await lab.client.start_workflow("TwoTurns", models, id=run_id, task_queue=lab.task_queue)
    trace_id = (await handle.result())[-1]
    lab.telemetry.flush()
    found = await read(lab, run_id)
    assert found.trace_id == trace_id
    assert of_reading(found.spans) == of_worker(lab.otlp.spans(trace_id=trace_id))


async def test_the_trace_contains_all_runs_of_a_chain(lab: Lab) -> None:
    async with temporal_server(dynamic_config=["limit.historyCount.suggestContinueAsNew=60"]) as server:
        client = await connect_to(server)
        at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"chain-{uuid.uuid4().hex[:6]}")
        async with running_worker(client, load(["tests.support.shop_agents"]), lab.telemetry, at.task_queue):
            turns = [call("clik") if n == 3 else call("search_orders", ADA) for n in range(25)]
            ran = await at.run([*turns, DONE], max_steps=100)
            found = await read(at, ran.id)
    assert len(found.spans) == 2 * 25 + 3
    assert of_reading(found.spans) == of_worker(ran.spans)


async def test_an_open_run_says_what_it_waits_for_and_without_a_worker_that_nobody_answers(lab: Lab) -> None:
    """A call that runs has no end. An ended run needs no worker: its history is replayed here."""
    queue = f"open-{uuid.uuid4().hex[:6]}"
    client = with_ended_runs(lab.client)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, queue)
    async with running_worker(lab.client, load(["tests.support.shop_agents"]), lab.telemetry, queue):
        handle = await at.start([call("wait_for_file"), DONE], metadata={"file": "/nowhere/at/all"})
        while await now_running(at, handle.id) != ["ai.toolCall wait_for_file"]:
            await asyncio.sleep(0.1)
        assert "wait_for_file" in (await read(at, handle.id, is_open=True)).waits_for
        await handle.terminate()
        waits = await at.start([call("wait_for_file"), DONE], metadata={"file": "/nowhere/at/all"})
        while not await now_running(at, waits.id):
            await asyncio.sleep(0.1)
    gone = await read(at, waits.id, is_open=True)
    assert (gone.spans, gone.source) == ([], "run")
    assert gone.origin.endswith("and no worker of the run answers")
    await waits.terminate()
    found = await read(at, handle.id)
    [held] = [span for span in found.spans if span.name == "ai.toolCall"]
    assert (held.end is not None, held.is_error, held.attributes["error.type"]) == (True, True, "terminated")
    assert [span for span in found.spans if span.name == "agent.finish"] == []


async def now_running(lab: Lab, run_id: str) -> list[str]:
    found = await run_trace(lab.client, run_id, NO_JAEGER, is_open=True)
    running = [span for span in found.spans if span.end is None] if found else []
    return [f"{span.name} {span.attributes.get('ai.toolCall.name', '')}".strip() for span in running]


async def test_an_encrypted_history_is_drawn_only_with_the_key(
    lab: Lab, mulligan: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the key a sentence says what is missing."""
    key = "k:" + base64.b64encode(b"0" * 32).decode()
    async with temporal_server() as server:
        monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", key)
        client = await connect_to(server)
        at = Lab(client, lab.model, lab.otlp, lab.telemetry, "near")
        async with running_worker(client, load_agents([near], []), lab.telemetry, at.task_queue):
            ran = await at.run([call("add", '{"a": -1, "b": 2}'), DONE], agent="near")
        environ = environment_of(server)
        code, out, _ = await show_trace(mulligan, ran.id, MULLIGAN_ENCRYPTION_KEYS=key, **environ)
        assert code == 0
        assert "ai.toolCall add  ERROR tool_error  recovered" in out
        code, out, err = await show_trace(mulligan, ran.id, **environ)
    assert (code, out) == (2, "")
    assert f"the history of '{ran.id}' cannot be read" in err
    assert "set MULLIGAN_ENCRYPTION_KEYS" in err
    assert "Traceback" not in err
