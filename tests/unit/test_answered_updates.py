"""An update that is sent again is answered as it was the first time, also by the workflow run that follows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio import workflow

from mulligan.errors import UpdateRefusedError
from mulligan.workflows import limits
from mulligan.workflows.people.answered_updates import AnsweredUpdates


class Updates:
    """What the SDK does for a workflow's updates: `send` handles one with an id, after its validator has accepted it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.handlers: dict[str, tuple[Any, Any]] = {}
        self._id = ""
        monkeypatch.setattr(workflow, "get_update_handler", self.handlers.get)
        monkeypatch.setattr(workflow, "set_update_handler", self._set)
        monkeypatch.setattr(workflow, "current_update_info", lambda: SimpleNamespace(id=self._id))

    def _set(self, name: str, handler: Any, *, validator: Any) -> None:
        self.handlers[name] = handler, validator

    async def send(self, update_id: str, argument: Any = None, name: str = "decide") -> Any:
        self._id = update_id
        handler, validator = self.handlers[name]
        validator(argument)
        return await handler(argument)


class Handler:
    """Counts how often it is asked; refuses what begins with `no`."""

    def __init__(self) -> None:
        self.handled: list[Any] = []
        self.checked: list[Any] = []

    async def __call__(self, argument: Any) -> dict[str, Any]:
        self.handled.append(argument)
        if str(argument).startswith("no"):
            raise UpdateRefusedError(str(argument), ended_by="it was denied")
        return {"accepted": argument}

    def check(self, argument: Any) -> None:
        self.checked.append(argument)
        if argument == "invalid":
            raise UpdateRefusedError("invalid")


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> Updates:
    return Updates(monkeypatch)


async def at_once() -> None:
    return None


def answering(handler: Handler, until_ready: Callable[[], Any] = at_once, **options: Any) -> AnsweredUpdates:
    answered = AnsweredUpdates(until_ready)
    answered.set_handler("decide", handler, handler.check, **options)
    return answered


async def test_a_repeated_update_is_answered_and_not_handled_again(updates: Updates) -> None:
    """Nor is it validated again: what it was for may be over."""
    handler = Handler()
    answering(handler)
    assert [await updates.send("1", "a"), await updates.send("1", "a"), await updates.send("2", "a")] == [
        {"accepted": "a"}
    ] * 3
    assert (handler.handled, handler.checked) == (["a", "a"], ["a", "a"])


async def test_a_refusal_is_repeated_with_how_the_wait_has_ended(updates: Updates) -> None:
    handler = Handler()
    answering(handler)
    for _ in range(2):
        with pytest.raises(UpdateRefusedError) as refused:
            await updates.send("1", "no" + "x" * 2_000)
        assert refused.value.ended_by == "it was denied"
    assert (len(handler.handled), len(refused.value.message)) == (1, 1_000)


async def test_what_a_validator_refuses_is_validated_again(updates: Updates) -> None:
    handler = Handler()
    answering(handler)
    for _ in range(2):
        with pytest.raises(UpdateRefusedError, match="invalid"):
            await updates.send("1", "invalid")
    assert (handler.handled, len(handler.checked)) == ([], 2)


async def test_the_next_workflow_run_knows_the_newest_answers(
    updates: Updates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own after them. Ids are carried as digests."""
    monkeypatch.setattr(limits, "UPDATE_ANSWERS_KEPT", 3)
    first = answering(Handler())
    for each in "abcd":
        await updates.send(each * 1_000, each)
    state = json.loads(json.dumps(first.dump()))
    assert ([len(key) for key in state], [*state.values()]) == ([24] * 3, [{"accepted": each} for each in "bcd"])
    updates.handlers.clear()
    handler = Handler()
    second = answering(handler)
    await updates.send("e", "e")
    second.load(state)
    assert await updates.send("d" * 1_000, "other") == {"accepted": "d"}
    assert handler.handled == ["e"]
    assert [each["accepted"] for each in second.dump().values()] == ["c", "d", "e"]
    await updates.send("b" * 1_000, "again")
    assert handler.handled == ["e", "again"]
    monkeypatch.setattr(limits, "UPDATE_ANSWERS_BYTES", 50)
    assert [each["accepted"] for each in second.dump().values()] == ["again"]


@pytest.mark.parametrize(
    ("options", "waits"), [({}, True), ({"needs_state": True}, True), ({"needs_state": False}, False)]
)
async def test_an_update_waits_for_the_state_of_a_continued_run(
    options: dict[str, Any], waits: bool, updates: Updates
) -> None:
    """Unless it changes nothing if it is handled twice."""
    ready, handler = asyncio.Event(), Handler()
    answering(handler, ready.wait, **options)
    sending = asyncio.create_task(updates.send("1", "a"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert handler.handled == ([] if waits else ["a"])
    ready.set()
    assert await sending == {"accepted": "a"}


async def test_an_update_that_a_users_workflow_handles_itself_stays_its_own(updates: Updates) -> None:
    own = Handler()
    updates.handlers["decide"] = own, own.check
    answering(Handler())
    assert updates.handlers["decide"] == (own, own.check)
