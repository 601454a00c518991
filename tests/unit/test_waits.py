"""What an agent waits for: which wait is found, what is shown of several, what is carried over, and when a run may leave."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar, cast

import pytest
from temporalio import workflow

from mulligan.values import SubRun, ToolCall
from mulligan.wire.updates import Stop
from mulligan.workflows import limits
from mulligan.workflows.conversation.records import CallRecord
from mulligan.workflows.listed_status import ListedWaits
from mulligan.workflows.newest_that_fit import newest_that_fit
from mulligan.workflows.people.person_wait import PersonWait
from mulligan.workflows.shown_wait import ModelWait, RunningCall, WorkerWait, shown_wait
from mulligan.workflows.waits import Wait, WaitKind, Waits
from tests.support.core_parts import tool_call

NOW = 1_000_000.0


class CountedUpdates:
    """In place of what lists show: counts how often it is told that something may have changed."""

    def __init__(self) -> None:
        self.count = 0

    def update(self) -> None:
        self.count += 1


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow, "time", lambda: NOW)
    monkeypatch.setattr(workflow, "info", lambda: Info())


class Info:
    workflow_id = "run 1"


def new_waits() -> Waits:
    return Waits(cast(ListedWaits, CountedUpdates()))


def told(waits: Waits) -> int:
    return cast(CountedUpdates, waits._listed).count


def person(call_id: str = "c", since: float = NOW, **fields: Any) -> PersonWait:
    call = tool_call(call_id=call_id)
    given = {"reason": "approval", "text": "pay {}", "step": 1, "index": 0, **fields}
    return PersonWait(key=call_id, call=call, since=since, **given)


def worker(*, opens: bool) -> WorkerWait:
    return WorkerWait(key="", agent="x", opens=opens, since=NOW)


def running(name: str, since: float = NOW, **fields: Any) -> RunningCall:
    record = CallRecord(run=fields.pop("run", None))
    return RunningCall(
        key=name, call=ToolCall(id=name, name=name, arguments="{}"), record=record, since=since, **fields
    )


def test_a_wait_is_found_by_its_class_and_key_while_it_is_open() -> None:
    waits, mine = new_waits(), person()
    with waits.entered(mine):
        assert waits.find(PersonWait, "c") is mine
        assert waits.find(PersonWait, "d") is None
        assert waits.find(WorkerWait, "c") is None
        with waits.entered(running("look")):
            assert waits.of(PersonWait) == [mine]
            assert [each.key for each in waits.of(Wait)] == ["c", "look"]
        assert told(waits) == 3
    assert (waits.find(PersonWait, "c"), waits.of(Wait), told(waits)) == (None, [], 4)


def test_a_call_whose_wait_for_a_person_was_cut_short_is_remembered() -> None:
    """Its result then says that nobody has decided. That of another wait, or of a call with a decision, does not."""
    waits, undecided, decided, tool = new_waits(), person("a"), person("b"), running("look")
    decided.resolve("approve")
    for each in (undecided, decided, tool):
        with pytest.raises(KeyError), waits.entered(each):
            raise KeyError
    with waits.entered(person("c")):
        pass
    assert (waits.abandoned, waits.open) == ([undecided], {})


def carried_over(waits: Waits) -> Waits:
    """The waits of the next workflow run."""
    loaded = new_waits()
    loaded.load(json.loads(json.dumps(waits.dump())), {"person": PersonWait})
    return loaded


def test_a_wait_for_a_person_is_carried_over_until_it_is_entered_again() -> None:
    """That of a worker, a model or a tool begins anew."""
    waits = new_waits()
    mine = person("a", since=5.0, timeout=60.0, role="boss")
    with waits.entered(mine), waits.entered(running("look")), waits.entered(worker(opens=True)):
        after = carried_over(waits)
    again = after.carried(PersonWait, "a")
    assert again is not None
    assert (again.since, again.timeout, again.role, again.text) == (5.0, 60.0, "boss", "pay {}")
    assert [*after.open] == [("person", "a")]
    assert (after.is_carried("a"), after.is_carried("look"), after.carried(PersonWait, "b")) == (True, False, None)
    with after.entered(again):
        assert told(after) == 0  # lists show it already
        assert (after.carried(PersonWait, "a"), after.is_carried("a"), after.find(PersonWait, "a")) == (
            None,
            False,
            again,
        )
    assert told(after) == 1


def test_how_waits_have_ended_is_remembered_for_late_replies() -> None:
    waits = new_waits()
    waits.remember(person("a b"), "it was denied")
    assert waits.how_ended(PersonWait, "a b") == "it was denied"
    assert waits.how_ended(PersonWait, "b") is None
    assert waits.how_ended(WorkerWait, "a b") is None
    assert carried_over(waits).how_ended(PersonWait, "a b") == "it was denied"
    assert new_waits().dump() == {}


def test_the_oldest_end_is_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DECISIONS_KEPT", 2)
    waits = new_waits()
    for key in "abc":
        waits.remember(person(key), key)
    assert [waits.how_ended(PersonWait, each) for each in "abc"] == [None, "b", "c"]


@pytest.mark.parametrize(("most", "fitting"), [(100, "abc"), (15, "abc"), (14, "bc"), (5, "c"), (4, ""), (0, "")])
def test_the_newest_entries_that_fit_are_carried(most: int, fitting: str) -> None:
    """In their order. Each of these has a key of one character and JSON of four."""
    assert "".join(newest_that_fit(dict.fromkeys("abc", "xx"), most)) == fitting


def test_an_entry_that_is_too_large_ends_the_list() -> None:
    assert newest_that_fit({"a": 1, "b": "x" * 50, "c": 2}, 20) == {"c": 2}


def test_a_request_to_stop_ends_what_people_are_asked() -> None:
    waits, open_wait, decided = new_waits(), person("a"), person("b")
    decided.resolve("approve", by="Ada")
    with waits.entered(open_wait), waits.entered(decided), waits.entered(running("look")):
        waits.stop(Stop(by="Bo", reason="late"))
    assert open_wait.decision is not None
    assert (open_wait.decision.decision, open_wait.decision.by, open_wait.decision.reason) == ("stopped", "Bo", "late")
    assert decided.decision is not None
    assert decided.decision.decision == "approve"


class Leaves(Wait):
    """A wait that hands what has come to the next workflow run."""

    name = "leaves"
    leaves_first = True


@pytest.mark.parametrize(
    ("wait", "is_over", "is_due", "threads", "leaves"),
    [
        (person(), False, True, 1, True),
        (person(), False, False, 1, False),  # the history is short
        (person(), True, True, 1, False),  # what has come is done first
        (person(), False, True, 2, False),  # another call is running
        (person(is_held=True), False, True, 1, False),  # an activity is running
        (Leaves(key="", since=NOW), True, True, 1, True),
        (Leaves(key="", since=NOW), True, False, 1, False),
    ],
)
async def test_a_run_leaves_when_all_that_is_open_only_waits(
    wait: Wait, is_over: bool, is_due: bool, threads: int, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is lost then: the open waits are carried over."""

    class Left(Exception):
        pass

    def leave() -> Any:
        def go() -> None:
            raise Left

        return go

    async def nothing_comes(condition: Any, **_: Any) -> None:
        assert not condition()
        raise TimeoutError

    monkeypatch.setattr(workflow, "wait_condition", nothing_comes)
    waits = new_waits()
    waits.is_due, waits.open_threads, waits.leave = (lambda: is_due), (lambda: threads), leave
    has_left, is_in_time = False, None
    try:
        with waits.entered(wait):
            is_in_time = await waits.until(wait, lambda: is_over, at=NOW + 1)
    except Left:
        has_left = True
    assert has_left is leaves
    assert (wait in waits.open.values()) is leaves
    assert waits.abandoned == []
    assert is_in_time == (None if leaves else is_over)
    assert not waits.is_waiting(wait.key)


async def test_a_state_that_is_too_large_is_waited_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again when it is due again."""
    slept: list[Any] = []
    is_over = False
    due = [True]

    async def comes(condition: Any, *, timeout: float | None, timeout_summary: str | None) -> None:
        nonlocal is_over
        slept.append((timeout, timeout_summary))
        is_over = True

    def leave() -> None:
        due[0] = False

    monkeypatch.setattr(workflow, "wait_condition", comes)
    waits, wait = new_waits(), person()
    waits.is_due, waits.open_threads, waits.leave = (lambda: due[0]), (lambda: 1), leave
    with waits.entered(wait):
        assert await waits.until(wait, lambda: is_over, at=NOW + 30, summary="so long") is True
    assert slept == [(30.0, "so long")]


@pytest.mark.parametrize(("at", "timeout"), [(None, None), (NOW + 2, 2.0), (NOW, 0.001), (NOW - 9, 0.001)])
async def test_a_point_in_time_that_has_passed_is_waited_for_once(
    at: float | None, timeout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have come between two workflow runs. What comes with the timer was in time."""
    slept: list[float | None] = []
    comes_with_timer = [False]

    async def passes(condition: Any, *, timeout: float | None, timeout_summary: str | None) -> None:
        slept.append(timeout)
        assert waits.is_waiting("c")
        assert not waits.is_waiting("d")
        comes_with_timer[0] = comes_with_timer[0] or at is None
        raise TimeoutError

    monkeypatch.setattr(workflow, "wait_condition", passes)
    waits, wait = new_waits(), person()
    with waits.entered(wait):
        assert await waits.until(wait, lambda: comes_with_timer[0], at=at) is (at is None)
        assert slept == [timeout]
        assert await waits.until(wait, lambda: True, at=at) is True
        assert slept == [timeout]


async def test_nothing_waits_any_more_after_the_step_was_cut_short() -> None:
    waits, wait = new_waits(), person()
    waits.are_over = True
    with pytest.raises(asyncio.CancelledError), waits.entered(wait):
        await waits.until(wait, lambda: True)


MODEL = ModelWait(key="", model="openai:m", step=3, patience=60.0, since=NOW - 9)


@pytest.mark.parametrize(
    ("waits", "kind", "detail"),
    [
        ([], None, ""),
        ([running("look", is_hidden=True)], None, ""),
        ([MODEL], "model", "waiting for `openai:m` (step 3) since"),
        ([running("look"), MODEL], "tool", "running `look` since"),
        ([person(), running("look")], "tool", "running `look` since"),
        ([person(), running("look", is_hidden=True)], "person", "waiting for approval of `pay` since"),
        ([running("b", since=2), running("a", since=1)], "tool", "running `a` since 00:00 UTC; also running: `b`"),
        ([running("a", run=SubRun(agent="x", id="sub"))], "tool", "running `a` (run sub) since"),
        ([running("a"), worker(opens=True)], "worker", "waiting for a worker that opens the run of"),
        ([worker(opens=False)], "worker", "waiting for a worker that serves agent `x` since"),
    ],
)
def test_the_wait_that_is_shown_is_the_oldest_of_the_first_kind(
    waits: list[Wait], kind: str | None, detail: str
) -> None:
    shown = shown_wait(waits, "0")
    assert (shown.kind if shown else None) == kind
    assert detail in (shown.detail if shown else "")
    assert (shown.retried_for if shown else None) == (60.0 if kind == "model" else None)


class Timer(Wait):
    """A wait until a point in time."""

    name = "timer"
    ended_by: ClassVar[WaitKind | None] = "timer"

    def __init__(self, since: float, ends_at: float | None) -> None:
        super().__init__(key=f"{since}", since=since)
        self._ends_at = ends_at

    @property
    def ends_at(self) -> float | None:
        return self._ends_at

    def describe(self, others: Any, key: str) -> tuple[str, str]:
        return "sleeping", f" and {len(others)} more"


def test_of_several_points_in_time_the_next_one_is_shown() -> None:
    shown = shown_wait([Timer(0, 500.0), Timer(60, 400.0), Timer(120, 450.0)], "0")
    assert shown is not None
    assert (shown.until, shown.detail) == ("1970-01-01T00:06:40.000Z", "sleeping since 00:01 UTC and 2 more")


def test_the_kinds_of_waits_are_shown_in_their_order() -> None:
    """What somebody can do something about stands first."""
    order: list[WaitKind] = ["worker", "tool", "person", "callback", "timer", "model"]

    for at, kind in enumerate(order):
        waits = [type("Of", (Timer,), {"ended_by": each})(0, None) for each in order[at:]]
        shown = shown_wait(reversed(waits), "0")
        assert shown is not None
        assert shown.kind == kind
