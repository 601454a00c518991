"""Whether a run continues as new: the same in each replay, and decided by all that is carried."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio import workflow

from mulligan.values import Decision, ToolCall
from mulligan.wire.questions import Question
from mulligan.wire.run_context import RunContext
from mulligan.workflows import limits
from mulligan.workflows.clean_up import clean_up_id
from mulligan.workflows.conversation.continue_as_new import fits_in_state
from mulligan.workflows.durable_agent import DurableAgent
from mulligan.workflows.listed_status import ListedWaits
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
    waits, how = Waits(ListedWaits(list)), "it was approved by " + "A" * 999
    for number in range(1_100):
        waits.remember(wait_of(f"c {number}"), f"{how} {number}")
    assert waits.how_ended(PersonWait, "c 99") is None
    assert waits.how_ended(PersonWait, "c 100") == f"{how} 100"
    state = waits.dump()
    assert len(json.dumps(state)) < 1.2 * limits.DECISIONS_CARRIED_BYTES
    after = Waits(ListedWaits(list))
    after.load(json.loads(json.dumps(state)), {})
    assert after.how_ended(PersonWait, "c 1099") == f"{how} 1099"
    assert after.how_ended(PersonWait, "c 1050") is not None
    assert after.how_ended(PersonWait, "c 100") is None
    assert after.dump() == state


def wait_of(key: str) -> PersonWait:
    call = ToolCall(id=key, name="pay", arguments="{}")
    return PersonWait(key=key, since=0.0, call=call, index=0, reason="approval", arguments={}, text="", step=1)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=3)
TEXTS, SECONDS = st.text(max_size=20), st.floats(0, 1e9)
DECISIONS = st.builds(
    Decision,
    kind=st.sampled_from(["approval", "question"]),
    decision=st.sampled_from(["approve", "deny", "answer", "timeout", "stopped"]),
    since=TEXTS, at=TEXTS, by=st.none() | TEXTS, reason=st.none() | TEXTS, edited=st.booleans(), before=JSON_VALUES,
)  # fmt: skip
PERSON_WAITS = st.builds(
    PersonWait,
    key=TEXTS.filter(bool), since=SECONDS, index=st.integers(0, 99), step=st.integers(1, 99), text=TEXTS,
    call=st.builds(ToolCall, id=TEXTS, name=TEXTS, arguments=TEXTS),
    reason=st.sampled_from(["approval", "question"]), arguments=JSON_VALUES, edited_arguments=JSON_VALUES,
    timeout=st.none() | SECONDS, reminder=st.none() | SECONDS, reminders=st.integers(0, 9), is_held=st.booleans(),
    question=st.none() | st.builds(Question, key=TEXTS, text=TEXTS, answer_schema=st.none() | OBJECTS, url=st.none() | TEXTS),
    decision=st.none() | DECISIONS, answer=st.none() | TEXTS, content=st.none() | OBJECTS,
)  # fmt: skip


@settings(deadline=None)
@given(waits=st.lists(PERSON_WAITS, max_size=3, unique_by=lambda each: each.key))
def test_waits_for_people_are_carried_over_with_all_that_they_have(waits: list[PersonWait]) -> None:
    before, after = Waits(ListedWaits(list)), Waits(ListedWaits(list))
    before.open = {(each.name, each.key): each for each in waits}
    after.load(json.loads(json.dumps(before.dump())), {PersonWait.name: PersonWait})
    assert [vars(each) for each in after.open.values()] == [vars(each) for each in waits]
    assert list(after.open) == list(before.open)
    assert all(after.carried(PersonWait, each.key) for each in waits)


@pytest.mark.parametrize("run_id", ["run", "é" * 1_000], ids=["short", "longer than an id may be"])
def test_what_ends_a_cancelled_run_has_its_own_id_for_each_agent_call_and_turn(run_id: str) -> None:
    """Ids of calls are unique in a conversation only: two agents of one workflow may have the same, in one trace."""
    traces = (f"00-{digit * 32}-{'c' * 16}-01" for digit in "ab")
    contexts = [RunContext(agent="a", conversation=key, trace=trace) for trace in traces for key in ("0", "1")]
    ids = [clean_up_id(run_id, name, context) for context in contexts for name in ("end-c1", "end-c2")]
    assert len(set(ids)) == len(ids)
    assert max(len(each.encode()) for each in ids) <= limits.WORKFLOW_ID_BYTES
