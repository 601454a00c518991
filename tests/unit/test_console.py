"""What the console makes of events, schemas and texts, without a server."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.client.event_position import START as START_POSITION
from mulligan.client.watch_run import WatchedEvent
from mulligan.run_view.run_view import Entry, RunView
from mulligan.run_view.step_view import StepView
from mulligan.serve.console import run_rows, step_events
from mulligan.serve.console.argument_form import Change, changes_between, fields_of, read_fields
from mulligan.serve.console.live_steps import live_frames
from mulligan.serve.console.misunderstood_tool import (
    Misunderstanding,
    ToolsDay,
    most_misunderstood,
    read_tools_day,
)
from mulligan.serve.console.rendering import anchor_of, link_to, render
from mulligan.serve.console.run_page import _entries
from mulligan.serve.console.run_rows import Failures, RunRows, failures_in
from mulligan.serve.console.step_events import StepEvents
from mulligan.serve.console.timeline import WIDTH, draw_timeline
from mulligan.serve.problems import Problem
from mulligan.serve.runs import RunInfo
from mulligan.wire.event_types import EVENT, Event
from tests.support.random_run_events import RandomRun

START = datetime(2026, 11, 22, 12, tzinfo=UTC)
SCHEMA = {
    "type": "object",
    "required": ["order", "amount", "note"],
    "$defs": {
        "Amount": {"type": "object", "properties": {"euros": {"type": "number", "minimum": 1}}, "required": ["euros"]}
    },
    "properties": {
        "order": {"type": "integer"},
        "amount": {"$ref": "#/$defs/Amount"},
        "note": {"type": "string"},
        "urgent": {"type": "boolean"},
        "color": {"enum": ["red", "blue"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}
ARGUMENTS: dict[str, Any] = {"order": 7, "amount": {"euros": 2.5}, "note": "", "tags": ["a"], "extra": None}


class Log:
    """Events with offsets and times."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, type_: str, after: float, /, **fields: Any) -> None:
        at = (START + timedelta(seconds=after)).isoformat()
        self.events.append(EVENT.validate_python({"type": type_, "at": at, "offset": len(self.events), **fields}))

    def step(
        self, number: int, after: float, name: str, error: str | None = None, call_id: str = "", attempts: int = 1
    ) -> None:
        """A step with one call."""
        call_id = call_id or f"c{number}"
        call: dict[str, Any] = {"step": number, "call_id": call_id, "name": name}
        self.add("step_started", after, step=number, model="scripted:x")
        made = [{"id": call_id, "name": name, "arguments": "{}"}]
        self.add("answered", after + 1, step=number, text="", tool_calls=made, usage={})
        if error is None:
            self.add("tool_call_started", after + 1, **call, arguments={})
        info = {"kind": error, "message": "m"} if error else None
        self.add("tool_call_settled", after + 2, **call, result={"text": "r", "error": info}, attempts=attempts)


def steps_of(log: Log) -> list[StepView]:
    return list(RunView.of(log.events).steps.values())


def test_a_mistake_is_linked_with_the_next_call_of_its_tool_that_succeeds() -> None:
    log = Log()
    for number, (name, error) in enumerate(
        [("find", "invalid_arguments"), ("other", None), ("find", "tool_error"), ("find", None), ("find", None)], 1
    ):
        log.step(number, number * 3, name, error)
    calls = [next(iter(step.calls.values())) for step in steps_of(log)]
    assert calls[3].corrects is calls[2]
    assert calls[2].corrected_by is calls[3]
    assert calls[1].corrects is None


def test_a_mistake_is_corrected_only_by_a_later_call_of_the_same_tool() -> None:
    log = Log()
    log.step(1, 0, "serch", "unknown_tool", attempts=0)
    log.step(2, 3, "search")
    first, second = (next(iter(step.calls.values())) for step in steps_of(log))
    assert first.is_mistake
    assert (first.corrected_by, second.corrects) == (None, None)
    assert (anchor_of(first), anchor_of(second)) == ("step-1-call-1", "step-2-call-1")


@pytest.mark.parametrize(
    ("kind", "attempts", "is_mistake"),
    [
        ("unknown_tool", 0, True),
        ("invalid_arguments", 0, True),
        ("tool_error", 1, True),
        ("unknown_tool", 1, False),  # the call was valid, and its tool is gone from the worker
        ("tool_exception", 1, False),
        ("tool_timeout", 2, False),
        ("tool_lost", 1, False),
        ("tool_lost", 0, False),
        ("denied", 0, False),
        ("cancelled", 1, False),
        ("a_later_kind", 1, False),
    ],
)
def test_only_what_a_model_did_wrong_is_its_mistake(kind: str, attempts: int, is_mistake: bool) -> None:
    """In the transcript, and in the count of an agent's day. Only a mistake can be corrected."""
    log = Log()
    log.step(1, 0, "pay", kind, attempts=attempts)
    log.step(2, 3, "pay")
    first, _ = steps_of(log)
    [call] = first.calls.values()
    assert (first.is_mistaken, call.is_mistake, call.corrected_by is not None) == (is_mistake,) * 3
    assert call.has_failed == (not is_mistake and kind != "denied")
    failures = failures_of([("pay", kind)], attempts=attempts)
    assert failures.counts == {("pay", kind): 1}
    assert failures.mistakes == {("pay", kind): int(is_mistake)}


def test_a_mistake_and_its_correction_on_different_pages_have_links_to_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()
    for number in range(1, 5):
        log.step(number, number * 3, "find", "tool_error" if number == 2 else None)
    monkeypatch.setattr(step_events, "STEPS_OF_PAGE", 2)
    for first, last in ((1, 2), (3, 4)):
        steps = {number: [each for each in log.events if getattr(each, "step", 0) == number] for number in range(1, 5)}
        page = StepEvents(
            first, last, 4, "", [*steps[first], *steps[last]], steps.get(first - 1, []), steps.get(last + 1, [])
        )
        shown = [entry for entry in _entries(page, is_alone=False) if isinstance(entry, StepView)]
        assert [step.number for step in shown] == [first, last]
        links = [
            link_to(other, page)
            for step in shown
            for call in step.calls.values()
            if (other := call.corrects or call.corrected_by)
        ]
        assert links == [{1: "?page=2#step-3-call-1", 3: "?page=1#step-2-call-1"}[first]]


def test_a_denied_call_is_no_mistake() -> None:
    log = Log()
    log.step(1, 0, "pay", "denied")
    assert not steps_of(log)[0].is_mistaken


def test_the_timeline_keeps_work_in_proportion_and_draws_a_night_of_waiting_short() -> None:
    log = Log()
    log.step(1, 0, "a")
    call: dict[str, Any] = {"step": 2, "call_id": "c", "name": "pay"}
    log.add("step_started", 2, step=2, model="scripted:x")
    log.add("answered", 4, step=2, text="", tool_calls=[{"id": "c", "name": "pay", "arguments": "{}"}], usage={})
    log.add("waiting", 4, **call, kind="approval")
    log.add("decided", 40_004, **call, decision="approve")
    log.add("tool_call_started", 40_004, **call)
    log.add("tool_call_settled", 40_006, **call, result={"text": ""}, attempts=1)
    line = draw_timeline(steps_of(log), START)
    [(x, seconds)] = line.pauses
    assert (seconds, line.seconds) == (40_000, 40_006)
    bars = {bar.kind: bar for bar in line.rows[1].bars}
    assert bars["model"].width == pytest.approx(bars["tool"].width, abs=0.2)
    assert bars["wait"].width < bars["model"].width
    assert bars["wait"].x < x < bars["tool"].x
    assert bars["tool"].x + bars["tool"].width == pytest.approx(WIDTH, abs=0.2)


@pytest.mark.parametrize(("kind", "what"), [("callback", "its result"), ("timer", "a point in time")])
def test_a_deferred_call_is_drawn_as_its_tool_and_then_a_wait(kind: str, what: str) -> None:
    log = Log()
    call: dict[str, Any] = {"step": 1, "call_id": "c", "name": "order"}
    log.add("step_started", 0, step=1, model="scripted:x")
    log.add("answered", 1, step=1, text="", tool_calls=[{"id": "c", "name": "order", "arguments": "{}"}], usage={})
    log.add("tool_call_started", 1, **call, arguments={})
    log.add("tool_call_deferred", 2, **call, deferred={"kind": kind, "started": "x", "since": "2026-11-22T10:00:00Z"})
    [step] = steps_of(log)
    assert step.calls["c"].open_wait is None  # nobody can decide it
    now = START + timedelta(seconds=3_600)
    bars = {bar.kind: bar for bar in draw_timeline([step], now).rows[0].bars}
    assert bars["wait"].title == f"order: waits for {what}, 3598.0 s"
    assert bars["tool"].title == "step 1: order, 1.0 s"
    log.add("tool_call_settled", 3_600, **call, result={"text": "7 rows"}, attempts=1)
    assert "3598.0 s" in draw_timeline(steps_of(log), now).rows[0].bars[0].title


@pytest.mark.parametrize("count", [1, 2])
def test_one_and_many_are_written_differently(count: int) -> None:
    assert {1: "1 call waits.", 2: "2 calls wait."}[count] in render("_waiting_count.html", "", keys=["k"] * count)
    log = Log()
    log.add("compacted", 0, step=1, messages=count, text="s")
    log.step(1, 1, "a")
    shown = render("_entry.html", "", entry=steps_of(log)[0], run_id="r")
    assert {1: "the oldest message was", 2: "the oldest 2 messages were"}[count] in shown


def test_calls_and_sources_of_the_provider_are_in_the_step_and_only_web_addresses_are_links() -> None:
    log = Log()
    calls = [
        {"id": "s", "name": "web_search", "arguments": '{"q": "<b>"}', "status": "completed"},
        {"id": "", "name": "run_code", "arguments": "{}", "status": "failed"},
        {"id": "", "name": "read_file", "arguments": "{}", "status": "in_progress"},
    ]
    cited = [
        {"url": "https://shop.example/lamps?a=1&b=2", "title": "<i>Lamps</i>"},
        {"url": "javascript:alert(1)", "title": "Press me"},
        {"url": "", "title": "prices.pdf"},
    ]
    log.add("step_started", 0, step=1, model="scripted:x")
    log.add("answered", 1, step=1, text="3", tool_calls=[], usage={}, hosted_calls=calls, citations=cited)
    shown = " ".join(render("_entry.html", "", entry=steps_of(log)[0], run_id="r").split())
    for name, status in (
        ("web_search", "✓</span> done"),
        ("run_code", "✕</span> failed"),
        ("read_file", "in progress"),
    ):
        assert re.search(f"Call by the provider</span> <code>{name}</code>(?:(?!<code>).)*{status}", shown), name
    assert "{&#34;q&#34;: &#34;&lt;b&gt;&#34;}" in shown
    assert (
        '<a href="https://shop.example/lamps?a=1&amp;b=2" rel="noreferrer noopener">&lt;i&gt;Lamps&lt;/i&gt;</a>'
        in shown
    )
    assert ">Press me</li>" in shown
    assert ">prices.pdf</li>" in shown
    assert "javascript:" not in shown


class Page:
    """What a browser has of a run's page: as the module live_run.js does it."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.written: dict[int, str] = {}
        self.ended = False

    def receive(self, frame: bytes) -> None:
        lines = frame.decode().split("\n")
        kind = next(line.removeprefix("event: ") for line in lines if line.startswith("event: "))
        data = "\n".join(line.removeprefix("data: ") for line in lines if line.startswith("data: "))
        match kind:
            case "entry":
                for article in re.findall(r"<(?:article|p) [^>]*?id=\"[^\"]+\".*?(?=<article |\Z)", data, re.DOTALL):
                    self.entries[re.findall(r'id="([^"]+)"', article)[0]] = article.strip()
            case "text":
                sent = json.loads(data)
                before = "" if sent["begins"] else self.written.get(sent["step"], "")
                self.written[sent["step"]] = before + sent["text"]
            case "progress":
                assert any(json.loads(data)["call"] in entry for entry in self.entries.values())
            case _:
                self.ended = kind == "ended"


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.integers(0, 2**32).map(Random))
async def test_a_page_that_follows_a_run_shows_what_a_page_that_is_opened_now_shows(random: Random) -> None:
    """Each entry is the same HTML, whenever it was last sent; and the text that is being written is that of the attempt."""
    events = RandomRun(random).make()
    events = events[: random.randint(1, len(events))]
    page, written = Page(), dict[int, str]()

    async def watch() -> AsyncIterator[WatchedEvent]:
        for event in events:
            yield WatchedEvent(event, "1", START_POSITION)
            if event.type == "text_delta":
                written[event.step] = page.written.get(event.step, "")
                assert written[event.step].endswith(event.text)
            if event.type in ("text_void", "model_fallback"):
                assert page.written.get(event.step, "") == ""

    def entry(each: Entry) -> str:
        return render("_entry.html", "", entry=each, run_id="r")

    async for frame in live_frames(watch(), entry, lambda model: None):
        page.receive(frame)
    whole = Page()
    for each in RunView.of(event for event in events if hasattr(event, "offset")).entries:
        whole.receive(b"event: entry\n" + "".join(f"data: {line}\n" for line in entry(each).split("\n")).encode())
    assert page.entries == whole.entries
    assert page.ended


def test_a_form_returns_the_arguments_that_nobody_has_edited() -> None:
    fields = fields_of(SCHEMA, ARGUMENTS)
    assert [each.kind for each in fields] == ["number", "group", "text", "choice", "choice", "json", "json"]
    sent = {each.name: each.value for field in fields for each in (field.fields or [field])}
    assert read_fields(fields, sent) == ARGUMENTS
    assert changes_between(ARGUMENTS, read_fields(fields, sent)) == []


def test_what_was_edited_is_named_by_its_path() -> None:
    fields = fields_of(SCHEMA, ARGUMENTS)
    edited = read_fields(fields, {"arg.1.0": "3", "arg.2": "a\r\nb", "arg.3": "true", "arg.5": '["a", 1]'})
    assert edited == {
        "order": 7,
        "amount": {"euros": 3},
        "note": "a\nb",
        "urgent": True,
        "tags": ["a", 1],
        "extra": None,
    }
    changes = changes_between(ARGUMENTS, edited)
    assert Change("amount.euros", "2.5", "3") in changes
    assert Change("urgent", None, "true") in changes
    assert [change.path for change in changes] == ["amount.euros", "note", "tags", "urgent"]


@pytest.mark.parametrize(("name", "value"), [("arg.0", "seven"), ("arg.5", "[")])
def test_a_field_that_cannot_be_read_is_named(name: str, value: str) -> None:
    with pytest.raises(Problem, match=r'"(order|tags)" is'):
        read_fields(fields_of(SCHEMA, ARGUMENTS), {name: value})


def test_arguments_without_a_schema_are_one_field_of_json() -> None:
    [field] = fields_of(None, {"a": 1})
    assert read_fields([field], {"json": '{"a": 2}'}) == {"a": 2}


def test_every_value_is_escaped() -> None:
    problem = Problem(404, "x", '<b onclick="x">&\u202e')
    shown = render("problem.html", "", session=None, here="", note=None, title="<i>", problem=problem)
    assert "&lt;b onclick=&#34;x&#34;&gt;&amp;⟦U+202E RIGHT-TO-LEFT OVERRIDE⟧" in shown
    assert "<i>" not in shown


def failures_of(*steps: list[tuple[str, str | None]], attempts: int = 0) -> Failures:
    """The failures of steps 50, 51, … with these calls: (tool, kind of its error)."""
    return failures_in(
        [
            {
                "step": number,
                "tool_calls": [
                    {
                        "name": name,
                        "result": {"text": "r", "error": {"kind": kind, "message": "m"} if kind else None},
                        "attempts": attempts,
                    }
                    for name, kind in calls
                ],
            }
            for number, calls in enumerate(steps, 50)
        ]
    )


def test_the_tool_that_models_misunderstood_most_is_counted_over_all_runs_of_its_agent() -> None:
    """By all kinds together, with the newest run of each kind. What failed after it was called rightly does not count."""
    newest = failures_of([("find", None), ("pay", "tool_error")], [("find", None), ("find", "invalid_json")])
    older = failures_of([("find", "invalid_arguments")], [("pay", "tool_error"), ("find", "invalid_arguments")])
    other = failures_of([("pay", "unknown_tool"), ("pay", "unknown_tool"), ("find", "invalid_json")])
    found = [
        ({"id": "n", "agent": "a"}, newest),
        ({"id": "x", "agent": "b"}, other),
        ({"id": "o", "agent": "a"}, older),
    ]
    tool = most_misunderstood(found)
    assert tool is not None
    assert (tool.name, tool.agent) == ("find", "a")
    assert tool.kinds == [
        Misunderstanding("invalid_arguments", 2, "o", "?page=1#step-50-call-1"),
        Misunderstanding("invalid_json", 1, "n", "?page=2#step-51-call-2"),
    ]
    assert most_misunderstood([({"id": "n", "agent": "a"}, failures_of([("pay", "tool_error")]))]) is None


@pytest.mark.parametrize(
    ("day", "sentences"),
    [
        (ToolsDay(None, 0, 0, is_complete=True), "There were no runs."),
        (ToolsDay(None, 1, 1, is_complete=True), "No tool was called wrongly. From 1 of 1 run."),
        (ToolsDay(None, 0, 2, is_complete=True), "From 0 of 2 runs. The others were not read."),
        (
            ToolsDay(None, 3, 500, is_complete=False),
            "No tool was called wrongly. From 3 of 500+ runs. The others were not read.",
        ),
        (
            ToolsDay(None, 3, 4, is_complete=True, unread_failures=1),
            "From 3 of 4 runs. The others were not read.",
        ),
    ],
)
def test_the_agents_page_says_how_many_runs_it_has_read(day: ToolsDay, sentences: str) -> None:
    shown = render("agents.html", "", agents=[], day=day, title="", session=None, note=None)
    section = shown.split("Misunderstood most in the last 24 hours</h2>")[1].split("</section>")[0]
    assert " ".join(re.sub("<[^>]+>", " ", section).split()) == sentences


async def test_failures_of_ended_runs_are_read_before_open_runs_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """More open runs than are read at the same time have no worker: they take all the time that there is."""
    monkeypatch.setattr(run_rows, "SECONDS_FOR_DAY", 0.2)
    ids = [*(f"open-{number}" for number in range(2 * run_rows.PARALLEL_READS)), "failed", "lost", "well"]
    unreadable = {"lost"}

    class Away(RunRows):
        async def list_day(self, *_: Any, **__: Any) -> tuple[list[dict[str, Any]], bool]:
            return [{"id": each, "status": "running" if "open" in each else "completed"} for each in ids], True

        async def _info(self, runs: Any, caller: Any, run: dict[str, Any]) -> Any:
            if run["status"] == "running":
                await asyncio.Event().wait()
            result = {"recovered_failures": int(run["id"] != "well")}
            return RunInfo(id=run["id"], agent="x", status="completed", started=START, result=result)

        async def failures_of(self, runs: Any, run: dict[str, Any], recovered: int) -> Failures | None:
            key = "pay", "unknown_tool"
            return None if run["id"] in unreadable else Failures(Counter([key]), Counter([key]), {key: ""})

    day = await read_tools_day(Away(), None, None)  # type: ignore[arg-type]
    assert day.tool is not None
    assert day.tool.kinds == [Misunderstanding("unknown_tool", 1, "failed", "")]
    assert (day.looked_at, day.total, day.unread_failures) == (2, len(ids), 1)
    unreadable.add("failed")
    day = await read_tools_day(Away(), None, None)  # type: ignore[arg-type]
    assert (day.tool, day.looked_at, day.unread_failures) == (None, 1, 2)


async def test_the_page_of_an_agent_does_not_wait_for_runs_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be read in time is said: neither waited for, nor counted as if nothing had failed."""
    monkeypatch.setattr(run_rows, "SECONDS_FOR_DAY", 0.2)
    listed = [{"id": each, "status": "completed", "started": "2026-11-22T12:00:00Z"} for each in ("a", "b", "c")]

    class Slow(RunRows):
        async def list_day(self, *_: Any, **__: Any) -> tuple[list[dict[str, Any]], bool]:
            return listed, True

        async def _info(self, runs: Any, caller: Any, run: dict[str, Any]) -> Any:
            if run["id"] != "a":
                await asyncio.Event().wait()
            return RunInfo(id="a", agent="x", status="completed", started=START, result={"recovered_failures": 2})

        async def failures_of(self, *_: Any) -> Failures | None:
            await asyncio.Event().wait()
            raise AssertionError("there is no time left")

    day = await Slow().day(None, None, "x")  # type: ignore[arg-type]
    assert (day.total, day.unread, day.recovered, day.looked_at) == (3, 2, 2, 0)
    shown = render("agent.html", "", agent={"name": "x", "tools": []}, day=day, title="", session=None, note=None)
    section = " ".join(re.sub("<[^>]+>", " ", shown.split("The last 24 hours</h2>")[1].split("</section>")[0]).split())
    assert (
        "Recovered failures 2+ Cost, sub-agents included $0+ 2 of 3 runs could not be read in time; what they recovered from is not counted."
        in section
    )
    assert "No failures were recovered" not in section
