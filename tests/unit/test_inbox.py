"""What people have sent to an agent: messages once and in their order, and a request to stop that is for one turn."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
from temporalio import workflow

from mulligan.errors import UpdateRefusedError
from mulligan.wire.parse_update import check_size, parse_update
from mulligan.wire.updates import Decide, SendMessage, Stop
from mulligan.workflows import limits
from mulligan.workflows.listed_status import ListedWaits
from mulligan.workflows.people.answered_updates import AnsweredUpdates
from mulligan.workflows.people.inbox import Inbox


async def _at_once() -> None:
    return None


class Unlisted:
    def update(self) -> None:
        pass


def new_inbox(*texts: str) -> Inbox:
    inbox = Inbox(cast(ListedWaits, Unlisted()), AnsweredUpdates(_at_once))
    for text in texts:
        inbox.add_message(SendMessage(text=text), text)
    return inbox


def texts(inbox: Inbox) -> list[str]:
    return [each.text for each in inbox.new_messages()]


def test_messages_are_taken_once_in_the_order_of_their_arrival() -> None:
    inbox = new_inbox("b", "a")
    assert (texts(inbox), [each.text for each in inbox.take_messages()]) == (["b", "a"], ["b", "a"])
    assert (texts(inbox), inbox.take_messages()) == ([], [])


def test_a_message_whose_id_has_come_before_is_ignored() -> None:
    """Also after the first one was taken."""
    inbox = new_inbox("a")
    inbox.add_message(SendMessage(text="other"), "a")
    assert texts(inbox) == ["a"]
    inbox.take_messages()
    inbox.add_message(SendMessage(text="other"), "a")
    assert texts(inbox) == []


def test_the_oldest_ids_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MESSAGE_IDS_KEPT", 2)
    inbox = new_inbox("a", "b", "c")
    inbox.take_messages()
    for each in "bc":
        inbox.add_message(SendMessage(text=each), each)
    assert texts(inbox) == []
    inbox.add_message(SendMessage(text="a"), "a")
    assert texts(inbox) == ["a"]


def test_what_is_carried_stands_before_what_has_come_since() -> None:
    """A message that was sent again meanwhile is one message."""
    before = new_inbox("a", "b")
    before.take_messages()
    before.add_message(SendMessage(text="c"), "c")
    state = json.loads(json.dumps(before.dump()))
    after = new_inbox("d", "a")
    after.load(state)
    assert texts(after) == ["c", "d"]
    after.add_message(SendMessage(text="d"), "d")
    after.add_message(SendMessage(text="b"), "b")
    assert texts(after) == ["c", "d"]


def test_a_request_to_stop_is_for_the_turn_that_runs() -> None:
    """The first one counts."""
    logged: list[str | None] = []
    inbox = new_inbox()
    inbox.on_stop = logged.append
    inbox.request_stop(Stop(reason="late"))
    inbox.request_stop(Stop(reason="again"))
    assert (inbox.stop, logged) == (Stop(reason="late"), ["late"])
    inbox.log_early_stop()
    assert logged == ["late"]
    inbox.end_turn()
    assert (inbox.stop, inbox.is_idle, inbox.is_closed) == (None, True, False)
    inbox.begin_turn()
    assert (inbox.is_idle, inbox.is_closed) == (False, False)


def test_a_stop_before_there_is_an_agent_is_logged_when_there_is_one() -> None:
    """Once."""
    logged: list[str | None] = []
    inbox = new_inbox()
    inbox.request_stop(Stop(reason="early"))
    inbox.log_early_stop()
    inbox.on_stop = logged.append
    inbox.log_early_stop()
    inbox.log_early_stop()
    assert logged == ["early"]


def test_a_carried_request_to_stop_goes_on_and_is_not_logged_again() -> None:
    logged: list[str | None] = []
    before, after = new_inbox(), new_inbox()
    before.request_stop(Stop(reason="late", by="Ada"))
    after.on_stop = logged.append
    after.load(before.dump())
    assert (after.stop, logged) == (Stop(reason="late", by="Ada"), [])


def test_a_stop_that_came_to_a_continued_run_before_its_state_is_logged() -> None:
    logged: list[str | None] = []
    after = new_inbox()
    after.request_stop(Stop(reason="now"))
    after.on_stop = logged.append
    after.load(new_inbox().dump())
    assert (after.stop, logged) == (Stop(reason="now"), ["now"])


def test_a_failed_turn_refuses_messages_until_the_next_one() -> None:
    inbox = new_inbox()
    inbox.request_stop(Stop())
    inbox.fail_turn()
    assert (inbox.stop, inbox.is_idle, inbox.is_closed) == (None, True, True)
    inbox.begin_turn()
    assert not inbox.is_closed


class Running:
    """A model call that runs: its handle."""

    def __init__(self) -> None:
        self.ended, self.cancelled = asyncio.Event(), 0

    def cancel(self) -> None:
        self.cancelled += 1
        self.ended.set()

    async def _answer(self) -> str:
        await self.ended.wait()
        return "answer"

    def __await__(self) -> Any:
        return self._answer().__await__()


async def test_a_model_call_may_run_for_its_grace_time_after_a_request_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has ended is left alone, and so is one of a run that goes on."""
    slept: list[Any] = []
    may_wake = asyncio.Event()

    async def sleep(duration: Any, *, summary: str) -> None:
        slept.append(duration)
        await may_wake.wait()

    monkeypatch.setattr(workflow, "sleep", sleep)
    inbox, running = new_inbox(), Running()
    answer = asyncio.create_task(inbox.unless_stopped(cast(Any, running)))
    await asyncio.sleep(0)
    inbox.request_stop(Stop())
    await asyncio.sleep(0)
    assert (slept, running.cancelled) == ([limits.STOP_GRACE], 0)
    may_wake.set()
    assert (await answer, running.cancelled) == ("answer", 1)
    later = new_inbox()
    running.ended.set()
    await later.unless_stopped(cast(Any, running))
    later.request_stop(Stop())
    await asyncio.sleep(0)
    assert (len(slept), running.cancelled) == (1, 1)


@pytest.mark.parametrize(
    ("kind", "argument", "why"),
    [
        (Stop, None, None),
        (Stop, {}, None),
        (Stop, "x", "The update's argument cannot be taken: input should be"),
        (Stop, {"reason": 5}, '"reason" cannot be taken: input should be a valid string.'),
        (Stop, {"x": 1}, '"x" is not a known field; known are'),
        (Stop, {f"f{n}": 1 for n in range(100)}, '"f0" is not a known field; known are'),
        (Stop, {f"f{n}": 1 for n in range(101)}, "The update's argument has 101 fields; at most 100 are accepted."),
        (SendMessage, {}, '"text" is missing.'),
        (Decide, {"decision": "approve"}, '"call_id" is missing.'),
        (Decide, {"call_id": "c", "decision": "approve", "roles": ["x"] * 1_001}, '"roles" has'),
    ],
)
def test_the_argument_of_an_update_is_checked_and_the_first_fault_is_told(
    kind: Any, argument: Any, why: str | None
) -> None:
    if why is None:
        assert parse_update(kind, argument) == kind()
        return
    with pytest.raises(UpdateRefusedError) as refused:
        parse_update(kind, argument)
    assert refused.value.message.startswith(why)


@pytest.mark.parametrize(("text", "refused"), [("é" * 5, False), ("é" * 5 + "x", True)])
def test_a_field_has_so_many_bytes(text: str, refused: bool) -> None:
    if not refused:
        check_size("text", text, 10)
        return
    with pytest.raises(UpdateRefusedError, match="has 11 bytes; at most 10 are accepted"):
        check_size("text", text, 10)
