"""`mulligan show --trace`: the command, and the trace from history compared with the exported spans."""

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
from mulligan.observe.telemetry import Telemetry
from mulligan.run_input import RunInput
from mulligan.trace_view.run_trace import run_trace
from mulligan.trace_view.trace_span import TraceSpan
from mulligan.worker.loading import load, load_agents
from mulligan.worker.wiring import running_worker
from tests.support.command_fixtures import QUEUE, Run
from tests.support.compaction_agents import reading
from tests.support.lab import DONE, Lab, call
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Failure, Turn
from tests.support.otlp_receiver import OtlpReceiver, Span
from tests.support.temporal import connect_to, environment_of

NO_JAEGER = "http://127.0.0.1:1"
ADA = '{"customer": "Ada"}'
Process = asyncio.subprocess.Process


async def show_trace(mulligan: Run, *words: str, **env: str) -> tuple[int, str, str]:
    ran = await mulligan("show", *words, "--trace", **{"MULLIGAN_JAEGER_URL": NO_JAEGER, **env})
    return ran.code, ran.out, ran.err


async def test_show_trace_draws_the_tree_from_history_without_jaeger(mulligan: Run, worker: Process) -> None:
    """The tree has errors and a bar for each span, without colours in a pipe; also as JSON."""
    await mulligan("start", "support", "What has Ada ordered?", "--id", "t-1", "--wait")
    code, out, err = await show_trace(mulligan, "t-1")
    assert code == 0
    assert err.startswith("Jaeger at http://127.0.0.1:1 does not answer: ")
    head, root, *below = out.splitlines()
    assert head.startswith("trace ")
    assert head.endswith("7 spans, 1 error, from Temporal's history (Jaeger at http://127.0.0.1:1 does not answer)")
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
    assert (code, answer["id"], answer["source"], answer["trace_id"]) == (0, "t-1", "history", result["trace_id"])
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
    assert "--all needs --trace" in alone.err


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
async def test_an_address_that_is_no_jaeger_is_reported_and_history_is_drawn(
    mulligan: Run, worker: Process, what: str
) -> None:
    """On stderr, without the password of the URL."""
    run_id = f"t-nonsense-{what.replace(' ', '-')}"
    await mulligan("start", "support", "Go", "--id", run_id, "--wait")
    async with answering(*NONSENSE[what]) as address:
        code, out, err = await show_trace(mulligan, run_id, MULLIGAN_JAEGER_URL=f"http://ada:sesame@{address}")
    assert code == 0
    assert f"from Temporal's history (Jaeger at http://{address} cannot be understood)" in out
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
spared = Agent(name="spared", model=["openai:refuses", "openai-chat:refuses-too", "openai-chat:spare"], tools=[add])
MISTAKES = [
    call("serch_orders", ADA),
    call("search_orders", '{"customer": "Ada"'),
    call("search_orders", '{"client": "Ada"}'),
    call("refuse"),
    call("hang_thread"),
    call("click", '{"element": "#a"}'),
    Turn(calls=[("now", "{}", None), ("refuse", "{}", None), ("nothing", "{}", None)]),
    Turn(text=""),
    DONE,
]
FAR = [("embed", '{"text": "abc"}'), ("not_deployed", "{}"), ("deserted", "{}"), ("now", "{}"), ("embed", "{}")]
SUB_AGENTS = [
    ("researcher", '{"prompt": "What?"}'),
    ("researcher", '{"prompt": "note 2"}'),
    ("researcher", '{"prompt": "for ever"}'),
    ("lazy", '{"prompt": "What?"}'),
]
SUMS = ['{"a": 1, "b": 2}', '{"a": -1, "b": 2}', "{}"]
RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mistakes": (MISTAKES, {"max_steps": 20, "metadata": {"team": "a"}}),
    "a failed run": ([call("now"), call("refuse")], {"agent": "strict"}),
    "a fatal answer": ([call("now"), Turn(calls=[("now", "{}", None), ("nothing", "{}", None)])], {"agent": "strict"}),
    "no steps left": ([call("now"), call("now")], {"max_steps": 2}),
    "elsewhere": ([Turn(calls=[(name, raw, None) for name, raw in FAR]), DONE], {"agent": "far"}),
    "structured": ([call("Refund", '{"order": 7}'), call("Refund", '{"order": 7, "amount": 2}')], {"agent": "refund"}),
    "written": ([Turn(text="No."), Turn(text='{"order": 7, "amount": 2}')], {"agent": "written"}),
    "a joined trace": ([DONE], {"traceparent": f"00-{0xABC:032x}-{0xDEF:016x}-01"}),
    "long": ([call("now")] * 101 + [DONE], {"max_steps": 200}),
    "local": (
        [Turn(calls=[("add", raw, None) for raw in SUMS]), call("add", "{'a': 1, 'b': 3,}"), DONE],
        {"agent": "near"},
    ),
    "sub-agents": (
        [
            Turn(calls=[(name, raw, None) for name, raw in SUB_AGENTS]),
            call("chief", "{'prompt': 'deep What?',}"),
            Turn(calls=[("lazy", "{}", None), ("note", '{"text": "x"}', None)]),
            DONE,
        ],
        {"agent": "lead", "metadata": {"team": "a"}},
    ),
    "sub-agents out of depth": (
        [Turn(calls=[("researcher", '{"prompt": "?"}', None), ("note", '{"text": "x"}', None)]), DONE],
        {"agent": "lead", "max_depth": 0},
    ),
    "a sub-agent fails the run": ([call("lazy", '{"prompt": "?"}')], {"agent": "strict_lead"}),
    "compacted": (reading(8), {"agent": "page_reader"}),
    "not compacted": (reading(8, summary=Turn(text="")), {"agent": "page_reader"}),
}
KNOWN = ("mulligan.step", "ai.toolCall.name", "ai.toolCall.id", "mulligan.attempt", "mulligan.recovered", "error.type",
         "mulligan.status", "gen_ai.agent.name", "temporal.run_id",
         "mulligan.compaction", "mulligan.decision.kind", "mulligan.decision.result", "mulligan.decision.by", "mulligan.fallback", "mulligan.cost",
         "mulligan.sub_run.id", "gen_ai.request.model", "mulligan.metadata.team", "mulligan.last_step", "temporal.workflow_type")  # fmt: skip


def facts(span: Any, parent_id: str, is_error: bool) -> tuple[Any, ...]:
    """The facts of a span that both sources must agree on."""
    repairs = tuple(span.attributes.get("mulligan.repairs") or ())
    # The history of a run without a result has no counters.
    has_result = span.attributes.get("mulligan.status") not in ("failed", "cancelled")
    known = [name for name in KNOWN if has_result or name != "mulligan.cost"]
    return parent_id, span.name, is_error, repairs, {name: span.attributes.get(name) for name in known}


def of_worker(spans: Sequence[Span]) -> dict[str, Any]:
    return {span.span_id: facts(span, span.parent_span_id, span.status == "ERROR") for span in spans}


def of_history(spans: Sequence[TraceSpan]) -> dict[str, Any]:
    return {span.span_id: facts(span, span.parent_id, span.is_error) for span in spans}


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
                running_worker(client, load_agents([near, spared], []), telemetry, "near"),
            ):
                yield Lab(client, model, otlp, telemetry, queue)
            telemetry.shutdown()


@pytest.mark.parametrize("what", RUNS)
async def test_the_trace_from_history_equals_the_spans_the_worker_exported(lab: Lab, what: str) -> None:
    """Ids, names, parents and failures are equal."""
    turns, given = RUNS[what]
    queue = "near" if given.get("agent") == "near" else lab.task_queue
    ran = await Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue).run(turns, **given)
    found = await run_trace(lab.client, ran.id, NO_JAEGER, is_open=False)
    assert found is not None
    assert {span.trace_id for span in ran.spans} == {found.trace_id}
    assert of_history(found.spans) == of_worker(ran.spans)
    began = {span.span_id: span.start_ns / 1e9 for span in ran.spans}
    # Both have the same clock; the times in history are those around the activity.
    assert all(span.start - 0.5 <= began[span.span_id] <= (span.end or 0) + 0.5 for span in found.spans)


async def test_decisions_of_people_are_in_the_trace_from_history(lab: Lab) -> None:
    """With the calls that ran after a decision and those that did not; one is stopped before it was asked about."""
    refund, question = '{"order": 7, "amount": {"euros": 5}}', '{"question": "?"}'
    calls = [("refund", refund, "yes"), ("ask_person", question, "q"), ("refund", refund, "no")]
    stopping = asyncio.Event()
    naps = [("nap", "{}", None), ("nap", '{"seconds": 1}', "n")]
    handle = await lab.start([Turn(calls=calls), Turn(calls=naps, wait=stopping)], agent="desk")
    for update, said in (
        ("decide", {"call_id": "yes", "decision": "approve", "by": "Ada"}),
        ("answer", {"call_id": "q", "text": "!"}),
        ("decide", {"call_id": "no", "decision": "deny", "by": "Ada"}),
    ):
        while said["call_id"] not in [wait["call_id"] for wait in await handle.query("pending")]:
            await asyncio.sleep(0.02)
        await handle.execute_update(update, said)
    while len(lab.model.requests_of(handle.id)) < 2:
        await asyncio.sleep(0.02)
    await handle.execute_update("stop", {})
    stopping.set()
    ran = await lab.look(handle)
    found = await run_trace(lab.client, ran.id, NO_JAEGER, is_open=False)
    assert found is not None
    assert of_history(found.spans) == of_worker(ran.spans)
    assert len(ran.spans_of("agent.decision")) == 4


async def test_each_model_that_failed_has_its_span_in_the_trace_from_history(lab: Lab) -> None:
    """Although they belong to the same step and the same attempt."""
    lab.model.script("spare", [call("add", SUMS[0]), DONE])
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, "near")
    ran = await at.run([], agent="spared", model=None)
    found = await run_trace(lab.client, ran.id, NO_JAEGER, is_open=False)
    assert found is not None
    assert [span.name for span in found.spans].count("chat spare") == 2
    assert of_history(found.spans) == of_worker(ran.spans)
    assert len(ran.spans) == len(found.spans) == 7


async def test_running_sub_agents_are_in_the_trace_of_the_calling_run(lab: Lab, tmp_path: Path) -> None:
    """The call of the sub-agent is open. After a cancellation all spans are closed."""
    asked = [
        ("researcher", json.dumps({"prompt": f"wait {tmp_path}/never"}), "a"),
        ("researcher", '{"prompt": "?"}', "b"),
    ]
    handle = await lab.start([Turn(calls=asked)], agent="lead")
    open_calls = ["ai.toolCall researcher: ", "ai.toolCall wait_for_file: "]
    while sorted(await now_running(lab, handle.id)) != open_calls:
        await asyncio.sleep(0.1)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    found = await run_trace(lab.client, handle.id, NO_JAEGER, is_open=False)
    lab.telemetry.flush()
    assert found is not None
    assert of_history(found.spans) == of_worker(lab.otlp.spans(trace_id=found.trace_id))
    assert sum(span.attributes.get("error.type") == "cancelled" for span in found.spans) == 2


async def test_the_trace_from_history_has_only_the_last_attempt_of_a_call(lab: Lab) -> None:
    """It has the number of the attempt."""
    failing = Turn(calls=[("flaky", "{}", None)], fail_first=[Failure(status=500)])
    ran = await lab.run([failing, DONE])
    found = await run_trace(lab.client, ran.id, NO_JAEGER, is_open=False)
    assert found is not None
    left_out = of_worker(ran.spans).keys() - of_history(found.spans)
    assert {span.name for span in ran.spans if span.span_id in left_out} == {"chat " + ran.id, "ai.toolCall"}
    assert len(left_out) == 3
    assert of_history(found.spans).items() <= of_worker(ran.spans).items()


async def test_turns_of_several_agents_are_roots_of_one_trace(lab: Lab) -> None:
    """In a user's own workflow. How each turn ended is in it, too."""
    run_id = f"own-{uuid.uuid4().hex[:8]}"
    lab.model.script(run_id, [call("now"), Turn(text="It is here."), call("clik"), Turn(text="So is 8.")])
    lab.model.script(run_id + "-b", [DONE])
    models = [f"openai-chat:{run_id}", f"openai:{run_id}-b"]
    handle = await lab.client.start_workflow("TwoTurns", models, id=run_id, task_queue=lab.task_queue)
    trace_id = (await handle.result())[-1]
    lab.telemetry.flush()
    found = await run_trace(lab.client, run_id, NO_JAEGER, is_open=False)
    assert found is not None
    assert found.trace_id == trace_id
    assert of_history(found.spans) == of_worker(lab.otlp.spans(trace_id=trace_id))


async def test_the_trace_from_history_contains_all_runs_of_a_chain(lab: Lab) -> None:
    """In one trace."""
    async with temporal_server(dynamic_config=["limit.historyCount.suggestContinueAsNew=60"]) as server:
        client = await connect_to(server)
        at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"chain-{uuid.uuid4().hex[:6]}")
        async with running_worker(client, load(["tests.support.shop_agents"]), lab.telemetry, at.task_queue):
            turns = [call("clik") if n == 3 else call("search_orders", ADA) for n in range(25)]
            ran = await at.run([*turns, DONE], max_steps=100)
            found = await run_trace(client, ran.id, NO_JAEGER, is_open=False)
    assert found is not None
    assert len(found.spans) == 2 * 25 + 3
    assert of_history(found.spans).keys() == of_worker(ran.spans).keys()


async def test_running_calls_of_an_open_run_have_no_end_in_the_trace(lab: Lab) -> None:
    """No worker is asked. After a termination they have an end."""
    queue = f"open-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    async with running_worker(lab.client, load(["tests.support.shop_agents"]), lab.telemetry, queue):
        handle = await at.start([call("wait_for_file"), DONE], metadata={"file": "/nowhere/at/all"})
        while await now_running(lab, handle.id) != ["ai.toolCall wait_for_file: "]:
            await asyncio.sleep(0.1)
        # It is shown as soon as its model has asked for it. Of a run terminated before the activity is scheduled, nothing is left.
        while not (await handle.describe()).raw_description.pending_activities:
            await asyncio.sleep(0.01)
        await handle.terminate()
    found = await run_trace(lab.client, handle.id, NO_JAEGER, is_open=False)
    assert found is not None
    [held] = [span for span in found.spans if span.name == "ai.toolCall"]
    assert (held.end is not None, held.is_error, held.attributes["error.type"]) == (True, True, "terminated")


async def now_running(lab: Lab, run_id: str) -> list[str]:
    found = await run_trace(lab.client, run_id, NO_JAEGER, is_open=True)
    if found is None:
        return []
    running = [span for span in found.spans if span.end is None]
    return [f"{span.name} {span.attributes.get('ai.toolCall.name', '')}: {span.message}" for span in running]


async def test_an_open_run_shows_the_attempt_of_its_model_call_and_the_last_error(lab: Lab) -> None:
    """The model returns 503."""
    down = Turn(text="done", fail_first=[Failure(status=503, headers={"retry-after": "600"})])
    handle = await lab.start([down], agent="asked")
    while not (said := [line for line in await now_running(lab, handle.id) if "attempt 2 follows" in line]):
        await asyncio.sleep(0.1)
    assert "503" in said[0]
    await handle.terminate()


async def test_an_encrypted_history_is_drawn_only_with_the_key(
    lab: Lab, mulligan: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the key a sentence says what is missing."""
    key = "k:" + base64.b64encode(b"0" * 32).decode()
    async with temporal_server() as server:
        monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", key)
        client = await connect_to(server)
        at = Lab(client, lab.model, lab.otlp, lab.telemetry, "near")
        async with running_worker(client, load_agents([near, spared], []), lab.telemetry, at.task_queue):
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
