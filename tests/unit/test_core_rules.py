"""Rules of the loop that a fault of one character would break, each where it is decided."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mulligan import Agent, Approvals, Call, Say, ToolContext, tool
from mulligan.activities.answers.approval_policy import ApprovalNeed, approval_need
from mulligan.activities.models.live_text import MOST_PARTS, LiveTextHeartbeats
from mulligan.activities.pin_facts import pinned_options
from mulligan.activities.tool_running.tool_runtime import ToolRuntime
from mulligan.client.live_pace import LivePace
from mulligan.testing import ScriptedModel, run_agent
from mulligan.values import ToolCall
from mulligan.wire.event_types import LIVE_TEXT, LiveCall, LiveText
from tests.support.prepare_one_call import say

WHOLE, BROKEN, OPEN = '{"text": "a"}', '{"text": NaN', '{"text": "a'


@pytest.mark.parametrize(
    ("written", "kinds"),
    [
        ([BROKEN, WHOLE], ["invalid_json", None]),
        ([OPEN, WHOLE], ["invalid_json", None]),
        ([WHOLE, BROKEN], [None, "truncated_call"]),
        ([WHOLE, OPEN], [None, "truncated_call"]),
        ([BROKEN, OPEN], ["invalid_json", "truncated_call"]),
        ([OPEN, BROKEN, WHOLE], ["invalid_json", "invalid_json", None]),
    ],
)
async def test_only_the_last_call_of_an_answer_that_was_cut_off_was_cut_off(
    written: list[str], kinds: list[str | None]
) -> None:
    """The model has gone on after each other one: it is told what is wrong with that, not to write less."""
    calls = [Call("say", each) for each in written]
    model = ScriptedModel(Say(calls=calls, finish_reason="length"), "done")
    run = await run_agent(Agent(name="a", model="scripted:test", tools=[say]), "Go.", model=model)
    results = [call.result for call in run.calls]
    assert [each and each.error and each.error.kind for each in results] == kinds


def written_calls(*pieces: tuple[int, str]) -> LiveText:
    """The heartbeat after pieces of calls: what is known of a call is its number, and its id."""
    due: list[Any] = []
    sent: list[LiveText] = []

    def call_later(_seconds: float, send: Any) -> Any:
        due.append(send)
        return SimpleNamespace(cancel=lambda: None)

    def send_live(live: dict[str, Any]) -> None:
        sent.append(LiveText.model_validate(json.loads(json.dumps(live[LIVE_TEXT]))))

    def describe(calls: Sequence[ToolCall]) -> LiveCall:
        return LiveCall(index=len(calls) - 1, name=calls[-1].name, call_id=calls[-1].id)

    heart = SimpleNamespace(call_later=call_later, send_live=send_live)
    live = LiveTextHeartbeats(cast(Any, heart), LivePace(1), "0", 3, 1, describe=describe)
    for index, piece in pieces:
        live.write_call(index, f"c{index}", f"tool_{index}", piece)
    for send in due:
        send()
    return sent[-1] if sent else LiveText(conversation="0", step=3, attempt=1, start=0, text="")


def calls_in(live: LiveText) -> list[tuple[int, str]]:
    return [(part.call.index, part.call.call_id) for part in live.parts if part.call is not None]


def test_each_piece_of_a_call_is_of_the_call_with_its_number() -> None:
    assert calls_in(written_calls((0, "{"), (1, "["), (0, "}"), (1, "]"))) == [(0, "c0"), (1, "c1")] * 2
    assert calls_in(written_calls((0, "{"), (1, "["), (2, "("))) == [(0, "c0"), (1, "c1"), (2, "c2")]


def test_a_call_is_begun_by_the_next_number_only() -> None:
    """What a model writes of a call whose number was left out comes with the answer."""
    assert calls_in(written_calls((1, "{"))) == []
    assert calls_in(written_calls((0, "{"), (2, "("))) == [(0, "c0")]
    assert calls_in(written_calls((0, "{"), (2, "("), (1, "["), (2, ")"))) == [(0, "c0"), (1, "c1"), (2, "c2")]


def test_no_more_calls_are_begun_than_a_heartbeat_has_parts() -> None:
    live = written_calls(*((index, "a") for index in range(MOST_PARTS + 3)))
    assert calls_in(live) == [(index, f"c{index}") for index in range(MOST_PARTS)]


NEEDS = [
    (False, ApprovalNeed(approval=False, role=None, denied=None)),
    (True, ApprovalNeed(approval=True, role=None, denied=None)),
    ("chief", ApprovalNeed(approval=True, role="chief", denied=None)),
]
FAULTY: list[object] = [None, 0, 1, "", " ", ["chief"]]


@pytest.mark.parametrize(("value", "need"), NEEDS)
@pytest.mark.parametrize("is_asked", [False, True])
async def test_a_call_needs_what_its_tool_says_and_no_more(value: Any, need: ApprovalNeed, is_asked: bool) -> None:
    """Said once for all calls, or asked for each."""
    policy = (lambda *_: value) if is_asked else value
    assert await needed(policy) == need


@pytest.mark.parametrize("value", FAULTY)
async def test_a_policy_that_says_anything_else_denies_and_asks_nobody(value: Any) -> None:
    need = await needed(lambda *_: value)
    assert (need.approval, need.role) == (False, None)
    assert need.denied is not None
    assert "policy returned" in need.denied


async def test_a_policy_that_fails_denies_and_asks_nobody() -> None:
    def fails(*_: object) -> bool:
        raise ValueError("No table.")

    need = await needed(fails)
    assert (need.approval, need.role) == (False, None)
    assert need.denied == "its policy failed: ValueError: No table."


async def needed(policy: Any) -> ApprovalNeed:
    @tool(needs_approval=policy)
    def pay(amount: int) -> None:
        """Pay."""

    context = ToolContext(idempotency_key="k", attempt=1, workflow_id="w", agent="a", call_id="c", step=1)
    return await approval_need(pay, ToolRuntime(), {"amount": 1}, context, 10.0)


def test_a_tool_needs_no_approval_and_a_wait_has_no_end_unless_that_is_said() -> None:
    assert say.traits.policy is False
    assert pinned_options(say, Agent(name="a", model="openai:m")) == {}
    asked = tool(needs_approval=True)(say.function)
    for own, pins in (({}, {}), ({"timeout": 5, "reminder": 60}, {"approvals": {"timeout": 5.0, "reminder": 60.0}})):
        agent = Agent(name="a", model="openai:m", features=[Approvals(**own)])
        assert pinned_options(asked, agent) == pins
        assert pinned_options(say, agent) == {}
