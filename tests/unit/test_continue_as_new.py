"""Whether a run continues as new: the same in each replay, and decided by all that is carried."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
from temporalio import workflow

from mulligan.values import ToolCall
from mulligan.workflows import limits
from mulligan.workflows.conversation.continue_as_new import fits_in_state
from mulligan.workflows.durable_agent import DurableAgent
from mulligan.workflows.people.person_wait import PersonWait
from mulligan.workflows.waits import Waits

MOST = 1_000_000


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], set[str]]:
    """Sets whether the workflow is replaying; returns the recorded markers."""
    markers: set[str] = set()
    replaying = False

    def patched(name: str) -> bool:
        if not replaying:
            markers.add(name)
        return name in markers

    def set_replaying(value: bool) -> set[str]:
        nonlocal replaying
        replaying = value
        return markers

    monkeypatch.setattr(workflow, "patched", patched)
    monkeypatch.setattr(workflow.unsafe, "is_replaying", lambda: replaying)
    return set_replaying


@pytest.mark.parametrize(("size", "other_size"), [(MOST - 10, MOST + 10), (MOST + 10, MOST - 10)])
def test_a_replay_decides_as_the_run_did_where_zstandard_compresses_otherwise(
    history: Callable[[bool], set[str]], size: int, other_size: int
) -> None:
    history(False)
    decided = fits_in_state(size, MOST, at=7)
    assert decided is (size <= MOST)
    history(True)
    assert fits_in_state(other_size, MOST, at=7) is decided
    assert fits_in_state(other_size, MOST, at=8) is False


def test_far_from_the_limit_nothing_is_recorded(history: Callable[[bool], set[str]]) -> None:
    """Histories from before the decision was recorded replay as they ran."""
    for replaying in (False, True):
        markers = history(replaying)
        assert (fits_in_state(10, MOST, at=1), fits_in_state(2 * MOST, MOST, at=1)) == (True, False)
        assert not markers


async def test_a_state_that_grew_while_handlers_finished_is_not_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    agent: Any = MagicMock()
    agent._agent.is_due.return_value = agent._agent.is_small_enough.return_value = True

    async def handlers_finish(_: Any) -> None:
        agent._agent.is_small_enough.return_value = False

    monkeypatch.setattr(workflow, "wait_condition", handlers_finish)
    assert await DurableAgent.can_continue_as_new(agent) is False
    agent._agent.postpone.assert_called_once()


def test_the_ends_of_waits_that_are_carried_are_the_newest_that_fit() -> None:
    waits, how = Waits(list), "it was approved by " + "A" * 999
    for number in range(1_100):
        waits.remember(wait_of(f"c {number}"), f"{how} {number}")
    assert waits.how_ended(PersonWait, "c 99") is None
    assert waits.how_ended(PersonWait, "c 100") == f"{how} 100"
    state = waits.dump()
    assert len(json.dumps(state)) < 1.2 * limits.DECISIONS_CARRIED_BYTES
    after = Waits(list)
    after.load(json.loads(json.dumps(state)), {})
    assert after.how_ended(PersonWait, "c 1099") == f"{how} 1099"
    assert after.how_ended(PersonWait, "c 1050") is not None
    assert after.how_ended(PersonWait, "c 100") is None
    assert after.dump() == state


def wait_of(key: str) -> PersonWait:
    call = ToolCall(id=key, name="pay", arguments="{}")
    return PersonWait(key=key, since=0.0, call=call, index=0, reason="approval", arguments={}, text="", step=1)
