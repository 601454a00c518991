"""A run's events are read once for all doors: whatever is cut, missed, repeated or unknown, the view is that of the run."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from mulligan import Agent, Call, ErrorInfo, Say, ToolError, tool
from mulligan.prices import Price
from mulligan.run_view import changes
from mulligan.run_view.run_view import RunView
from mulligan.run_view.step_view import CallView, StepView, WrittenCallView
from mulligan.serve import ag_ui, ai_sdk
from mulligan.serve.console.rendering import render
from mulligan.serve.mcp_api.progress_message import progress_message
from mulligan.serve.openai_api.chat_text import ChatText
from mulligan.serve.openai_api.response_events import ResponseEvents, ResponseHead
from mulligan.testing import ScriptedModel, run_agent
from mulligan.wire.event_types import Event, TextDelta
from tests.support.random_run_events import RandomRun

randoms = st.integers(0, 2**32).map(Random)
tried = settings(derandomize=True, deadline=None, max_examples=200)


class Invented(BaseModel):
    """An event of a later version."""

    type: Literal["invented"] = "invented"


def seen_of(view: RunView) -> dict[str, Any]:
    """What the stored events of a run say, without what depends on the parts of text that a reader has got."""
    entries: list[Any] = []
    for entry in view.entries:
        if not isinstance(entry, StepView):
            entries.append(entry.model_dump(mode="json"))
            continue
        step = {
            name: value for name, value in vars(entry).items() if name not in ("calls", "corrected_in", "compaction")
        }
        step["compaction"] = entry.compaction and entry.compaction.model_dump(mode="json")
        step["corrected_in"] = entry.corrected_in and entry.corrected_in.number
        step["calls"] = [seen_of_call(call) for call in entry.calls.values()]
        entries.append(step)
    return {"entries": entries, "usage": view.usage, "cost": view.cost, "end": view.end, "text": view.last_text}


def seen_of_call(call: CallView) -> dict[str, Any]:
    fields = {name: value for name, value in vars(call).items() if name not in ("waits", "corrects", "corrected_by")}
    fields["waits"] = [(wait.asked, wait.decided, wait.reminders) for wait in call.waits]
    linked = (call.corrects, call.corrected_by)
    return {**fields, "linked": [other and (other.step, other.number) for other in linked]}


def price_of(model: str) -> Price:
    return Price(input=2 if model == "openai:a" else 3, output=5)


def view_of(events: Iterable[Any], **options: Any) -> RunView:
    view = RunView(price_of=price_of, **options)
    for event in events:
        view.add(event)
    return view


def cut_otherwise(random: Random, events: list[Event]) -> Iterable[Any]:
    """The same run for another reader: deltas cut elsewhere, missed or read twice, events read twice, unknown events."""
    late: list[Event] = []
    for event in events:
        if random.random() < 0.1:
            yield Invented()
        if not isinstance(event, TextDelta):
            yield from [event] * random.choice((1, 1, 2))
            if event.type == "answered":
                yield from late
                late = []
            continue
        late = [event] if random.random() < 0.5 else []
        place = random.randint(0, len(event.text))
        parts = [(event.start, event.text[:place]), (event.start + place, event.text[place:])]
        for start, text in random.choice((parts, [*parts, parts[0]], [(event.start, event.text)], [])):
            yield event.model_copy(update={"start": start, "text": text})


@tried
@given(randoms, st.booleans())
def test_each_reader_of_a_run_has_the_same_view(random: Random, joins_gaps: bool) -> None:
    events = RandomRun(random).make()
    other = view_of(cut_otherwise(random, events), joins_gaps=joins_gaps)
    assert seen_of(other) == seen_of(view_of(events))


@tried
@given(randoms)
def test_a_reader_that_begins_later_has_the_same_steps_from_the_next_one_on(random: Random) -> None:
    """And the step in whose middle it began is not an entry: its beginning is not known."""
    events = RandomRun(random).make()
    start = random.randint(0, len(events))
    late, whole = view_of(events[start:]), view_of(events)
    begun = [event.step for event in events[start:] if event.type == "step_started"]
    assert [entry.number for entry in late.entries if isinstance(entry, StepView)] == begun
    for number in begun:
        ours, theirs = late.steps[number], whole.steps[number]
        assert (ours.text, ours.model, ours.cost, list(ours.calls)) == (
            theirs.text,
            theirs.model,
            theirs.cost,
            list(theirs.calls),
        )
        for call in ours.calls.values():
            assert call.corrects is None or call.corrects.step in begun
            assert seen_of_call(call) | {"linked": 0} == seen_of_call(theirs.calls[call.id]) | {"linked": 0}


class Client:
    """A client that has the changes alone, and refuses those that cannot come at their place."""

    def __init__(self) -> None:
        self.step: StepView | None = None
        self.text: str | None = None
        self.numbers: set[tuple[int, int]] = set()
        self.texts: dict[int, str] = {}
        self.answered: set[int] = set()
        self.written: dict[WrittenCallView, str] = {}
        self.announced: list[CallView] = []
        self.running: list[CallView] = []
        self.settled: list[CallView] = []
        self.waiting: set[int] = set()
        self.below: dict[str, Client] = {}
        self.ended = 0

    def take(self, change: changes.Change) -> None:
        match change:
            case changes.StepOpened(step):
                assert self.step is None
                self.step = step
            case changes.StepClosed(step):
                assert step is self.step
                assert not self.written
                assert self.text is None
                self.step = None
            case changes.StepAnswered(step):
                self.answered.add(step.number)
                assert self.texts.get(step.number, "") == step.text
            case changes.Below(source, inner):
                self.below.setdefault(source.id, Client()).take(inner)
            case changes.Ended():
                assert self.step is None
                self.ended += 1
            case changes.TextOpened() | changes.TextExtended() | changes.TextClosed():
                self.take_text(change)
            case changes.InputOpened() | changes.InputExtended() | changes.InputVoid():
                self.take_input(change)
            case changes.Noted():
                pass
            case _:
                self.take_call(change)

    def take_text(self, change: changes.TextChange) -> None:
        match change:
            case changes.TextOpened(step, number):
                assert self.text is None
                assert step.number not in self.answered
                assert (step.number, number) not in self.numbers
                self.numbers.add((step.number, number))
                self.text = ""
            case changes.TextExtended(_, text, seen, has_gap):
                assert self.text is not None
                assert text
                self.text += text
                assert has_gap or seen >= len(self.text)
            case changes.TextClosed(step, text, is_void):
                assert text == self.text
                self.text = None
                if not is_void:
                    self.texts[step.number] = text

    def take_input(self, change: changes.InputChange) -> None:
        match change:
            case changes.InputOpened(call):
                assert call not in self.written
                assert call.step not in self.answered
                assert call.index not in {each.index for each in self.written}
                self.written[call] = ""
            case changes.InputExtended(call, text):
                assert text
                self.written[call] += text
            case changes.InputVoid(call):
                del self.written[call]

    def take_call(self, change: changes.CallChange) -> None:
        match change:
            case changes.CallAnnounced(call, written):
                assert call not in self.announced
                if written is not None:
                    assert call.id == written.id
                    assert call.raw_arguments[written.start :] == self.written.pop(written)
                self.announced.append(call)
            case changes.CallRunning(call):
                assert call in self.announced
                assert call not in self.running
                self.running.append(call)
            case changes.CallSettled(call):
                assert call in self.announced
                assert call not in self.settled
                self.settled.append(call)
            case changes.WaitOpened(call, wait):
                assert call in self.announced
                self.waiting.add(id(wait))
            case changes.WaitEnded(_, wait):
                self.waiting.remove(id(wait))


@tried
@given(randoms, st.booleans())
def test_the_changes_are_all_that_a_client_needs(random: Random, joins_gaps: bool) -> None:
    """Texts, calls, waits and steps open before they close, once each; what was not void is the step's text."""
    events = list(cut_otherwise(random, RandomRun(random).make()))
    view, client = RunView(joins_gaps=joins_gaps), Client()
    for event in events:
        for change in view.add(event):
            client.take(change)
    texts = {number: step.text for number, step in view.steps.items() if step.text}
    assert (client.texts, client.ended) == (texts, 1)
    calls = [call for step in view.steps.values() for call in step.calls.values()]
    assert client.announced == calls
    assert set(client.running) == {call for call in calls if call.started}
    assert set(client.settled) == {call for call in calls if call.settled}
    assert all(call.corrects.corrected_by is call for call in calls if call.corrects)
    assert view.below == {}


def test_text_after_a_gap_is_passed_on_and_becomes_void_or_waits_for_the_whole() -> None:
    """A page shows what there is; a client that keeps what it gets waits."""
    run = RandomRun(Random(1))
    run._store("step_started", step=1, model="m")
    run._add("text_delta", step=1, attempt=1, start=0, text="He")
    run._add("text_delta", step=1, attempt=1, start=4, text="o")
    run._store("answered", step=1, text="Hello", tool_calls=[], usage={})
    outcomes = []
    for joins_gaps in (True, False):
        view = RunView(joins_gaps=joins_gaps)
        sent = [change for event in run.events for change in view.add(event)]
        outcomes.append(
            [
                (change.text, getattr(change, "is_void", getattr(change, "has_gap", None)))
                for change in sent
                if isinstance(change, (changes.TextExtended, changes.TextClosed))
            ]
        )
    assert outcomes[0] == [("He", False), ("o", True), ("Heo", True), ("Hello", False), ("Hello", False)]
    assert outcomes[1] == [("He", False), ("llo", False), ("Hello", False)]


@pytest.mark.parametrize(
    ("delta", "answer", "is_void"),
    [
        ("lo", "Hello", False),
        ("lo", "Helmet", True),
        ("lo", "He", True),
        ("lo", "", True),
        ("", "Hello", False),
        ("", "He", True),
    ],
)
def test_a_text_that_continues_elsewhere_is_void_if_the_answer_reads_otherwise(
    delta: str, answer: str, is_void: bool
) -> None:
    """Of "Hello", another reader has passed on the first three characters."""
    view, run = RunView(), RandomRun(Random(1))
    run._store("step_started", step=1, model="m")
    run._add("text_delta", step=1, attempt=1, start=3, text=delta)
    run._store("answered", step=1, text=answer, tool_calls=[], usage={})
    begun, more, answered = run.events
    view.add(begun)
    assert view.take_over(1, 3).step.number == 1
    view.add(more)
    closed = [change.is_void for change in view.add(answered) if isinstance(change, changes.TextClosed)]
    assert closed[0] == is_void


def test_a_call_that_continues_after_a_question_runs_once() -> None:
    run, call = RandomRun(Random(1)), {"step": 1, "call_id": "c", "name": "find"}
    run._store("step_started", step=1, model="m")
    run._store("answered", step=1, text="", tool_calls=[{"id": "c", "name": "find", "arguments": "{}"}], usage={})
    run._store("tool_call_started", **call, arguments={})
    run._store("waiting", **call, kind="question", text="Which?")
    run._store("decided", **call, decision="answer")
    run._store("tool_call_started", **call, arguments={})
    view = RunView()
    kinds = [type(change) for event in run.events for change in view.add(event)]
    assert kinds[-3:] == [changes.CallRunning, changes.WaitOpened, changes.WaitEnded]


def test_a_stream_that_is_left_closes_what_is_open() -> None:
    run = RandomRun(Random(1))
    run._store("step_started", step=1, model="m")
    run._add("text_delta", step=1, attempt=1, start=0, text="He")
    view = view_of(run.events)
    assert [type(change) for change in view.leave()] == [changes.TextClosed, changes.StepClosed]
    assert view.leave() == []


@pytest.mark.parametrize("most", [1, 2])
def test_no_more_steps_are_remembered_than_are_needed(most: int) -> None:
    events = RandomRun(Random(5)).make()
    numbers = [event.step for event in events if event.type == "step_started"]
    assert len(numbers) > 2
    assert list(view_of(events, most_steps=most).steps) == numbers[-most:]


@tool
def find(order: int) -> str:
    """Find an order."""
    if order == 0:
        raise ToolError("There is no order 0.")
    return f"order {order}"


async def test_the_steps_are_those_that_the_run_itself_reports() -> None:
    """The query `steps` and the reading of its events agree, and so do their tokens and the result's."""
    model = ScriptedModel(
        Say("I look.", calls=[Call("find", '{"order": "7",}'), Call("find", '{"order": 0}')]),
        Say(calls=[Call("search", "{}")]),
        Say(calls=[Call("find", '{"order": 8}')]),
        "Done.",
    )
    run = await run_agent(Agent(name="finder", model="openai:nobody", tools=[find]), "Go", model=model)
    view = view_of(run.events)
    assert len(run.steps) == 4
    for step, ours in zip(run.steps, view.steps.values(), strict=True):
        assert (ours.number, ours.text, ours.usage, ours.model) == (step.step, step.text, step.usage, step.model)
        for call, mine in zip(step.tool_calls, ours.calls.values(), strict=True):
            names = ("id", "name", "raw_arguments", "arguments", "repairs", "result", "attempts", "run")
            assert {name: getattr(mine, name) for name in names} == {name: getattr(call, name) for name in names}
    assert run.result is not None
    assert (view.end and view.end.result, view.usage) == (run.result, run.result.usage)
    failed, unknown = list(view.steps[1].calls.values())[1], next(iter(view.steps[2].calls.values()))
    corrects = next(iter(view.steps[3].calls.values())).corrects
    assert isinstance(failed.error, ErrorInfo)
    assert corrects is failed, "the newest mistake of the same tool"
    assert (unknown.is_mistake, unknown.corrected_by) == (True, None)


def test_each_door_ends_a_run_whose_status_it_does_not_know() -> None:
    """Statuses of a later version: the client gets the end with the result, and no failure."""
    run = RandomRun(Random(1))
    result = {"status": "new", "output": "Half.", "steps": 1, "usage": {}, "trace_id": "t"}
    run._store("run_ended", turn=1, status="new", result=result)
    [end] = run.events
    assert (
        ag_ui.Translator(ag_ui.RunAgentInput(thread_id="t", run_id="r"), None).translate(end)[-1]["type"]
        == "RUN_FINISHED"
    )
    assert ai_sdk.Translator(is_whole=True).translate(end)[-1] == {"type": "finish", "finishReason": "other"}
    response = ResponseEvents(ResponseHead("resp_1", "a", 0))
    [*_, last] = response.translate(end)
    assert (last["type"], response.to_json()["mulligan"]["status"]) == ("response.incomplete", "new")
    assert list(ChatText("run").pieces(end)) == ["Half."]
    assert progress_message("run", RunView().add(end)[-1]) == "The run has ended: new."
    assert "new" in render("_entry.html", "", entry=end, run_id="r")
