"""What a view of a run has after certain events: steps, corrections, waits, runs below, and which events it passes over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mulligan.prices import Price
from mulligan.run_view import changes
from mulligan.run_view.run_view import RunView
from mulligan.run_view.step_view import CallView, StepView
from mulligan.wire.event_types import EVENT, Event

START = datetime(2026, 11, 25, 12, tzinfo=UTC)
USAGE = {"input_tokens": 10, "output_tokens": 2}


class Log:
    """Stored events of a run, in their order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._offset = 0

    def add(self, event_type: str, /, **fields: Any) -> Log:
        at = START + timedelta(seconds=len(self.events))
        self.events.append(EVENT.validate_python({"type": event_type, "at": at, "offset": self._offset, **fields}))
        self._offset += 1
        return self

    def step(self, number: int, *calls: str, text: str = "") -> Log:
        """A step whose answer has these calls, each of the tool of its name up to the `_`."""
        made = [{"id": each, "name": tool_of(each), "arguments": "{}"} for each in calls]
        self.add("step_started", step=number, model="m")
        return self.add("answered", step=number, text=text, tool_calls=made, usage=USAGE)

    def settled(self, step: int, call: str, error: str | None = None, attempts: int = 1, **fields: Any) -> Log:
        result = {"text": "r", "error": error and {"kind": error, "message": "No."}}
        return self.add(
            "tool_call_settled", step=step, call_id=call, name=tool_of(call), result=result, attempts=attempts, **fields
        )

    def of_call(self, event_type: str, step: int, call: str, /, **fields: Any) -> Log:
        return self.add(event_type, step=step, call_id=call, name=tool_of(call), **fields)

    def below(self, run_id: str, kind: str, **fields: Any) -> Log:
        source = {"id": run_id, "agent": "b", "call_id": "helper_1", "parent": "run", "depth": 1}
        event = {"type": kind, "at": START, **fields}
        at = START + timedelta(seconds=len(self.events))
        self.events.append(EVENT.validate_python({"type": "sub_run", "at": at, "source": source, "event": event}))
        return self

    def view(self, **options: Any) -> RunView:
        view = RunView(**options)
        for event in self.events:
            view.add(event)
        return view


def tool_of(call: str) -> str:
    return call.partition("_")[0]


def test_a_stored_event_is_taken_once() -> None:
    """A reader that connects again gets the last ones again, and none is left out that follows one of them."""
    log = Log().step(1, "find_1").settled(1, "find_1").step(2, text="Done.")
    view = RunView()
    kinds = [[type(change) for change in view.add(event)] for event in log.events]
    assert all(kinds)
    assert [view.add(event) for event in log.events] == [[]] * len(log.events)
    assert (view.usage.input_tokens, view.usage.output_tokens, len(view.entries)) == (20, 4, 2)
    again = RunView.of([each for each in log.events for _ in range(2)])
    assert (again.usage, again.last_text, [*again.steps]) == (view.usage, "Done.", [1, 2])


def test_a_reading_may_begin_in_the_middle_of_a_step() -> None:
    """Its beginning stays unknown: it is no entry, and nothing of it is a correction."""
    log = Log().step(1, "find_1").settled(1, "find_1", "tool_error").step(2, "find_2").settled(2, "find_2")
    view = RunView.of(log.events[4:])
    assert ([*view.steps], view.entries, view.steps[2].started) == ([2], [], None)
    assert view.steps[2].calls["find_2"].corrects is None
    [settled] = RunView().add(log.events[2])
    assert isinstance(settled, changes.CallSettled)
    assert settled.call.error is not None


@pytest.mark.parametrize(
    ("kind", "attempts", "is_mistake"),
    [
        ("unknown_tool", 0, True),
        ("invalid_json", 0, True),
        ("invalid_arguments", 0, True),
        ("truncated_call", 0, True),
        ("duplicate_call", 0, True),
        ("invalid_code", 0, True),
        ("unknown_tool", 1, False),
        ("tool_error", 1, True),
        ("tool_error", 0, False),
        ("tool_exception", 1, False),
        ("denied", 0, False),
        ("tool_lost", 2, False),
    ],
)
def test_a_mistake_is_the_models_if_the_call_was_not_valid_or_its_tool_says_so(
    kind: str, attempts: int, is_mistake: bool
) -> None:
    view = Log().step(1, "find_1").settled(1, "find_1", kind, attempts).step(2, "find_2").settled(2, "find_2").view()
    failed, later = view.steps[1].calls["find_1"], view.steps[2].calls["find_2"]
    assert (failed.is_mistake, view.steps[1].is_mistaken) == (is_mistake, is_mistake)
    assert failed.has_failed is (not is_mistake and kind != "denied")
    assert (later.corrects is failed, failed.corrected_by is later) == (is_mistake, is_mistake)
    assert (later.is_mistake, later.has_failed, later.error) == (False, False, None)


def test_a_call_that_has_no_result_yet_has_no_error() -> None:
    call = Log().step(1, "find_1").view().steps[1].calls["find_1"]
    assert (call.error, call.is_mistake, call.has_failed) == (None, False, False)


def test_a_success_corrects_the_newest_mistake_of_an_earlier_step_in_its_tool_once() -> None:
    log = Log().step(1, "find_1", "find_2").settled(1, "find_1", "tool_error").settled(1, "find_2", "tool_error")
    log.step(2, "pay_3", "find_4").settled(2, "pay_3").settled(2, "find_4", "tool_exception")
    log.step(3, "find_5", "find_6", "find_7").settled(3, "find_5").settled(3, "find_6").settled(3, "find_7")
    view = log.view()
    linked = {
        call.id: call.corrects and call.corrects.id for step in view.steps.values() for call in step.calls.values()
    }
    assert linked == {
        **dict.fromkeys(("find_1", "find_2", "pay_3", "find_4", "find_7")), "find_5": "find_2", "find_6": "find_1",
    }  # fmt: skip


def test_a_success_in_the_same_step_corrects_nothing() -> None:
    log = Log().step(1, "find_1", "find_2").settled(1, "find_1", "tool_error").settled(1, "find_2")
    assert log.view().steps[1].calls["find_2"].corrects is None


def test_a_rejected_answer_is_corrected_in_the_next_step_only() -> None:
    log = Log().step(1, text="No").add("answer_rejected", step=1, error={"kind": "invalid_output", "message": "Wrong."})
    log.step(2, text="Yes").step(3, text="More")
    steps = log.view().steps
    assert [steps[n].corrected_in for n in (1, 2, 3)] == [steps[2], None, None]
    assert [steps[n].is_mistaken for n in (1, 2, 3)] == [True, False, False]


def test_answers_and_calls_are_numbered_from_one() -> None:
    """A step that has failed has no answer: it has the number of the next one."""
    view = Log().step(1, "find_1", "pay_2").add("step_started", step=2, model="m").step(3, "find_3", "pay_4").view()
    assert [view.steps[n].answer_number for n in (1, 2, 3)] == [1, 2, 2]
    assert [[call.number for call in view.steps[n].calls.values()] for n in (1, 2, 3)] == [[1, 2], [], [1, 2]]
    assert CallView("a", "find", 1, 1).number == 1


def test_each_step_is_closed_by_the_next_or_by_the_end() -> None:
    result = {"status": "completed", "output": "b", "steps": 2, "usage": {}, "trace_id": "t"}
    log = Log().add("run_started", turn=1, agent="a", model="m", max_steps=9).step(1, text="a").step(2, text="b")
    log.add("message", text="Hurry.").add("stopping", reason="So.")
    log.add("run_ended", turn=1, status="completed", result=result)
    view = RunView()
    seen = [change for event in log.events for change in view.add(event)]
    assert [change.step.number for change in seen if isinstance(change, changes.StepClosed)] == [1, 2]
    closed = next(place for place, change in enumerate(seen) if isinstance(change, changes.StepClosed))
    assert isinstance(seen[closed + 1], changes.StepOpened)
    assert [type(each).__name__ for each in view.entries] == [
        "RunStarted", "StepView", "StepView", "MessageReceived", "Stopping", "RunEnded",
    ]  # fmt: skip
    assert (view.status, view.leave()) == ("completed", [])


@pytest.mark.parametrize(("most", "kept"), [(1, [4]), (2, [3, 4]), (3, [2, 3, 4])])
def test_a_view_remembers_its_newest_steps_and_their_mistakes(most: int, kept: list[int]) -> None:
    log = Log()
    for number in range(1, 4):
        log.step(number, f"t{number}_{number}").settled(number, f"t{number}_{number}", "tool_error")
    log.step(4, "t3_4", "t2_5", "t1_6")
    for call in ("t3_4", "t2_5", "t1_6"):
        log.settled(4, call)
    view = log.view(most_steps=most)
    assert [*view.steps] == [each.number for each in view.entries if isinstance(each, StepView)] == kept
    corrected = [call.corrects and call.corrects.step for call in view.steps[4].calls.values()]
    assert corrected == [number if number in kept else None for number in (3, 2, 1)]


def test_a_call_may_wait_several_times_and_each_decision_ends_the_newest() -> None:
    log = Log().step(1, "pay_1")
    log.of_call("waiting", 1, "pay_1", kind="approval", arguments={"x": 1}, text="Pay?")
    log.of_call("reminder", 1, "pay_1", kind="approval", text="Pay?", number=2)
    log.of_call("decided", 1, "pay_1", decision="approve", by="ada", edited=True)
    log.of_call("waiting", 1, "pay_1", kind="approval", arguments={"x": 2}, text="Pay more?")
    call = log.view().steps[1].calls["pay_1"]
    assert [(wait.decided and wait.decided.by, wait.reminders) for wait in call.waits] == [("ada", 2), (None, 0)]
    assert (call.open_wait is call.waits[1], call.waits_for, call.arguments) == (True, "person", {"x": 2})
    assert (log.view().status, call.was_edited, call.needed_approval) == ("waiting", True, True)
    log.of_call("decided", 1, "pay_1", decision="deny", by="bob").of_call("tool_call_started", 1, "pay_1", arguments={})
    view = log.view()
    call = view.steps[1].calls["pay_1"]
    assert [wait.decided and wait.decided.by for wait in call.waits] == ["ada", "bob"]
    assert (call.open_wait, call.waits_for) == (None, "tool")
    call = log.settled(1, "pay_1").view().steps[1].calls["pay_1"]
    assert (call.open_wait, call.waits_for) == (None, None)


def test_a_decision_by_a_rule_ends_no_wait() -> None:
    """The call did not wait. Where the reading began after the question, a decision ends none that is known either."""
    rule = {"name": "pay small ones", "at": "2026-11-25T12:00:00Z"}
    log = Log().step(1, "pay_1").of_call("waiting", 1, "pay_1", kind="approval", text="Pay?")
    by_rule = log.of_call("decided", 1, "pay_1", decision="approve", rule=rule).view().steps[1].calls["pay_1"]
    assert by_rule.by_rule is log.events[-1]
    assert [wait.decided for wait in by_rule.waits] == [None]
    late = Log().step(1, "pay_1").of_call("decided", 1, "pay_1", decision="approve", by="ada")
    [ended] = RunView().add(late.events[-1])
    assert isinstance(ended, changes.WaitEnded)
    assert ended.wait is None
    assert late.view().steps[1].calls["pay_1"].by_rule is None


def test_views_of_runs_below_are_there_while_the_call_that_started_them_is_open() -> None:
    """Those of its own sub-agents go with it, and those of other calls stay."""
    log = Log().step(1, "helper_1", "helper_2")
    for run_id in ("run/h1", "run/h1/x", "run/h11", "run/h2"):
        log.below(run_id, "step_started", offset=0, step=1, model="n")
    assert sorted(log.view().below) == ["run/h1", "run/h1/x", "run/h11", "run/h2"]
    assert [*log.view().below["run/h2"].steps] == [1]
    log.settled(1, "helper_1", run={"id": "run/h1", "agent": "b"})
    assert sorted(log.view().below) == ["run/h11", "run/h2"]
    log.settled(1, "helper_2")
    assert sorted(log.view().below) == ["run/h11", "run/h2"]
    result = {"status": "completed", "output": "b", "steps": 2, "usage": {}, "trace_id": "t"}
    assert log.add("run_ended", turn=1, status="completed", result=result).view().below == {}


def test_a_call_that_a_script_makes_is_announced_by_its_first_event() -> None:
    """No answer has it. A call of an answer that was not read is not announced later."""
    log = Log().step(1, "script_1").of_call("tool_call_started", 1, "script_1", arguments={"code": "x"})
    for call in ("script_1.1", "script_1.1", "script_1.2"):
        log.of_call("tool_call_started", 1, call, arguments={"x": "ü"})
    log.settled(1, "script_1.3").of_call("tool_call_started", 1, "find_9", arguments={"x": 1})
    view = RunView()
    seen = [change for event in log.events for change in view.add(event)]
    announced = [change.call for change in seen if isinstance(change, changes.CallAnnounced)]
    assert [(call.id, call.raw_arguments) for call in announced] == [
        ("script_1", "{}"), ("script_1.1", '{"x": "ü"}'), ("script_1.2", '{"x": "ü"}'), ("script_1.3", "{}"),
    ]  # fmt: skip
    assert [change.call.id for change in seen if isinstance(change, changes.CallRunning)] == [
        "script_1", "script_1.1", "script_1.2", "find_9",
    ]  # fmt: skip


def test_the_cost_is_that_of_the_answers_whose_price_is_known() -> None:
    log = Log().step(1, text="a").step(2, text="b")
    assert (log.view().cost, log.view().steps[1].cost) == (0.0, None)
    view = log.view(price_of=lambda _: Price(input=1_000_000, output=2_000_000))
    assert (view.steps[1].cost, view.steps[2].cost, view.cost) == (14.0, 14.0, 28.0)
    free = log.view(price_of=lambda _: None)
    assert (free.steps[1].cost, free.cost) == (None, 0.0)


def test_the_text_that_an_answer_completes_is_counted_and_closed_once() -> None:
    place = {"step": 1, "attempt": 1}
    log = Log().add("step_started", step=1, model="m")
    log.events += [
        EVENT.validate_python({"type": "text_delta", "at": START, **place, "start": start, "text": text})
        for start, text in ((0, "Hel"), (3, "lo"))
    ]
    log.add("answered", step=1, text="Hello you", tool_calls=[], usage=USAGE)
    view = RunView()
    seen = [change for event in log.events for change in view.add(event)]
    assert [type(change).__name__ for change in seen] == [
        "StepOpened", "TextOpened", "TextExtended", "TextExtended", "TextExtended", "TextClosed", "StepAnswered",
    ]  # fmt: skip
    texts = [(change.text, change.seen, change.has_gap) for change in seen if isinstance(change, changes.TextExtended)]
    assert texts == [("Hel", 3, False), ("lo", 5, False), (" you", 9, False)]
    assert view.last_text == "Hello you"


def test_a_text_that_is_void_is_of_the_step_that_wrote_it() -> None:
    """And the next text of that step has the next number, whatever its attempt."""
    place = {"at": START, "step": 2}
    log = Log().step(1, text="a").add("step_started", step=2, model="m")
    delta = {"type": "text_delta", **place, "attempt": 1, "start": 0}
    log.events += [
        EVENT.validate_python({**delta, "text": "He"}),
        EVENT.validate_python({"type": "text_void", **place, "attempt": 1}),
        EVENT.validate_python({**delta, "text": "Ho"}),
    ]
    view = RunView()
    seen = [change for event in log.events for change in view.add(event)]
    closed = [
        (change.step.number, change.text, change.is_void) for change in seen if isinstance(change, changes.TextClosed)
    ]
    assert closed == [(1, "a", False), (2, "He", True)]
    opened = [(change.step.number, change.number) for change in seen if isinstance(change, changes.TextOpened)]
    assert opened == [(1, 1), (2, 1), (2, 2)]


def test_a_text_that_is_taken_over_before_any_step_is_of_none() -> None:
    view = RunView()
    opened = view.take_over(2, 3)
    assert (opened.step.number, opened.step.answer_number, opened.number, view.steps) == (0, 0, 2, {})
