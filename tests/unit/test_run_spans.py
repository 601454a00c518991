"""The trace of a run that no Jaeger has, from the reading of the run: compared with the spans that the workers wrote."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan.run_view.run_view import RunView
from mulligan.trace_view.run_spans import ReadRun, spans_of
from mulligan.trace_view.run_trace import running_of
from mulligan.trace_view.trace_span import TraceSpan
from mulligan.trace_view.tree import build_tree
from mulligan.wire.event_types import EVENT
from mulligan.worker.loading import load
from tests.promise.test_people import pending
from tests.support.lab import DONE, call
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Failure, Turn

ADA = '{"customer": "Ada"}'
MODULES = ["shop_agents", "structured_output_agents", "people_agents", "code_agents"]
MISTAKES = [
    call("serch_orders", ADA),
    call("search_orders", '{"customer": "Ada"'),
    call("search_orders", '{"client": "Ada"}'),
    call("refuse"),
    call("click", '{"element": "#a"}'),
    Turn(calls=[("now", "{}", None), ("refuse", "{}", None), ("nothing", "{}", None)]),
    Turn(text=""),
    DONE,
]
RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mistakes": (MISTAKES, {"max_steps": 20}),
    "a failed run": ([call("now"), call("refuse")], {"agent": "strict"}),
    "no steps left": ([call("now"), call("now")], {"max_steps": 2}),
    "structured": ([call("Refund", '{"order": 7}'), call("Refund", '{"order": 7, "amount": 2}')], {"agent": "refund"}),
    "a joined trace": ([DONE], {"traceparent": f"00-{0xABC:032x}-{0xDEF:016x}-01"}),
    "long": ([call("now")] * 101 + [DONE], {"max_steps": 200}),
}
KNOWN = ("mulligan.step", "ai.toolCall.name", "ai.toolCall.id", "mulligan.recovered", "error.type", "mulligan.status",
         "mulligan.decision.kind", "mulligan.decision.result", "mulligan.decision.by", "gen_ai.request.model",
         "mulligan.last_step", "mulligan.repairs", "mulligan.recovered_failures", "temporal.workflow_id")  # fmt: skip


@pytest.fixture(scope="module")
async def lab(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load([f"tests.support.{name}" for name in MODULES])) as at:
        yield at


async def read(ran: Any, parent: str = "") -> ReadRun:
    """The run as its events describe it, with the ids that it has in Temporal."""
    events = (await ran.handle.query("events", args=[0, 10_000]))["events"]
    [root] = [span for span in ran.spans if span.name.startswith("invoke_agent")]
    return ReadRun(
        view=RunView.of(map(EVENT.validate_python, events)),
        trace_id=root.trace_id,
        workflow_id=ran.id,
        run_id=root.attributes["temporal.run_id"],
        first_run_id=root.attributes["temporal.run_id"],
        workflow_type="AgentWorkflow",
        parent=parent,
    )


def facts(span: Any, parent_id: str, is_error: bool) -> tuple[Any, ...]:
    known = {name: value for name in KNOWN if (value := span.attributes.get(name)) not in (None, [])}
    return parent_id, span.name, is_error, {name: [*v] if isinstance(v, tuple) else v for name, v in known.items()}


def of_worker(ran: Any) -> dict[str, Any]:
    return {span.span_id: facts(span, span.parent_span_id, span.status == "ERROR") for span in ran.spans}


def of_reading(spans: list[TraceSpan]) -> dict[str, Any]:
    return {span.span_id: facts(span, span.parent_id, span.is_error) for span in spans}


@pytest.mark.parametrize("what", RUNS)
async def test_the_spans_of_the_reading_are_those_that_the_worker_wrote(lab: MemoryLab, what: str) -> None:
    """Ids, names, parents, errors and what recovered from them; the root of a joined trace is a root here."""
    turns, given = RUNS[what]
    ran = await lab.run(turns, **given)
    found = spans_of(await read(ran))
    written = of_worker(ran)
    if "traceparent" in given:
        written = {key: ("" if each[1].startswith("invoke") else each[0], *each[1:]) for key, each in written.items()}
    assert of_reading(found) == written


async def test_decisions_of_people_are_in_it_with_the_calls_that_ran_and_those_that_did_not(lab: MemoryLab) -> None:
    refund = '{"order": 7, "amount": {"euros": 5}}'
    calls = [("refund", refund, "yes"), ("ask_person", '{"question": "?"}', "q"), ("refund", refund, "no")]
    handle = await lab.start([Turn(calls=calls), DONE], agent="desk")
    for update, said in (
        ("decide", {"call_id": "yes", "decision": "approve", "by": "Ada"}),
        ("answer", {"call_id": "q", "text": "!"}),
        ("decide", {"call_id": "no", "decision": "deny", "by": "Ada"}),
    ):
        assert said["call_id"] in [each["call_id"] for each in await pending(handle)]
        await handle.execute_update(update, said)
    ran = await lab.look(handle)
    assert of_reading(spans_of(await read(ran))) == of_worker(ran)
    assert len(ran.spans_of("agent.decision")) == 3


async def test_calls_of_a_script_are_below_it(lab: MemoryLab) -> None:
    ran = await lab.run([call("run_code", '{"code": "await note(\'x\')"}', "s"), DONE], agent="coder")
    assert of_reading(spans_of(await read(ran))) == of_worker(ran)
    [script, inner] = [span for span in spans_of(await read(ran)) if span.name == "ai.toolCall"]
    assert inner.parent_id == script.span_id


async def test_a_handoff_says_to_whom(model: OpenAIServer) -> None:
    twice = Turn(calls=[("transfer_to_desk", "{}", "t1"), ("transfer_to_desk", "{}", "t2")])
    async with memory_lab(model, load(["tests.support.handoff_agents"])) as office:
        ran = await office.run([twice, DONE], agent="reception")
    found = {span.attributes.get("ai.toolCall.id"): span.attributes for span in spans_of(await read(ran))}
    assert [found[name].get("mulligan.handed_over_to") for name in ("t1", "t2")] == ["desk", None]


async def test_each_call_is_once_in_the_tree_with_its_earlier_attempts_below_it(lab: MemoryLab) -> None:
    """In the reading there is one span of it. Of the spans that workers wrote, the last one stands for all of them."""
    failing = Turn(calls=[("flaky", "{}", "f"), ("now", "{}", "n")], fail_first=[Failure(status=500)])
    ran = await lab.run([failing, DONE])
    [reading] = [each for each in spans_of(await read(ran)) if each.attributes.get("ai.toolCall.id") == "f"]
    assert (reading.attempt, reading.is_error) == (3, False)
    written = [
        TraceSpan(
            each.span_id, each.parent_span_id, each.name, each.start_ns / 1e9, each.start_ns / 1e9,
            each.status == "ERROR", attributes=each.attributes,
        )
        for each in ran.spans
    ]  # fmt: skip
    [root] = build_tree(written)
    calls = [each for each in root.children if each.span.name == "ai.toolCall"]
    assert sorted((each.span.attributes["ai.toolCall.id"], each.span.attempt, len(each.earlier)) for each in calls) == [
        ("f", 3, 2),
        ("n", 1, 0),
    ]
    assert (root.spans, root.errors) == (len(ran.spans), 3)


async def test_what_runs_now_is_added_once_to_what_jaeger_has(lab: MemoryLab) -> None:
    """A call of which Jaeger has only failed attempts runs again; one that has ended there does not run."""
    running = TraceSpan("a", "r", "ai.toolCall", 1, None, attributes={"ai.toolCall.id": "a", "mulligan.step": 1})
    failed = TraceSpan("a", "r", "ai.toolCall", 1, 2, True, attributes=running.attributes)
    assert [*running_of([running], [])] == [running]
    [again] = running_of([running], [failed])
    assert (again.attempt, again.span_id == failed.span_id) == (2, False)
    [node] = build_tree([failed, again])
    assert (node.span, node.earlier) == (again, [failed])
    assert [*running_of([running], [TraceSpan("a", "r", "ai.toolCall", 1, 2, attributes=running.attributes)])] == []


async def test_a_call_that_runs_has_no_end_and_one_that_waits_is_only_a_request(lab: MemoryLab) -> None:
    waits, asks = ("refund", '{"order": 7, "amount": {"euros": 5}}', "w"), ("ask_person", '{"question": "?"}', "q")
    handle = await lab.start([Turn(calls=[waits, asks]), DONE], agent="desk")
    await pending(handle)
    events = (await handle.query("events", args=[0, 100]))["events"]
    view = RunView.of(map(EVENT.validate_python, events))
    found = spans_of(ReadRun(view, f"{1:032x}", handle.id, "r", "r", "AgentWorkflow"))
    assert [span.name.split()[0] for span in found] == ["invoke_agent", "chat", "agent.request", "agent.request"]
    assert all(span.end is not None for span in found)
    for update, said in (
        ("decide", {"call_id": "w", "decision": "deny"}),
        ("answer", {"call_id": "q", "text": "!"}),
    ):
        await handle.execute_update(update, said)
    await handle.result()
    cut = [event for event in events if event["type"] not in ("answered", "waiting")]
    open_view = RunView.of(map(EVENT.validate_python, cut))
    [chat] = [span for span in spans_of(ReadRun(open_view, f"{1:032x}", handle.id, "r", "r", "")) if span.end is None]
    assert chat.name.startswith("chat ")
