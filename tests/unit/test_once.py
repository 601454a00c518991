"""`once`: the declaration, which calls are equal, what is remembered, and random conversations compared with a simple model."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan import Agent, Call, DeclarationError, McpServer, Say, ToolContext, ToolError, tool
from mulligan.once import EXCERPT_CHARS, MOST_CALLS, OnceCall, call_digest
from mulligan.run_input import ResumedFrom
from mulligan.testing import Model, run_agent
from mulligan.values import AssistantMessage, ToolCall, ToolMessage
from mulligan.wire.updates import Decide, Pending
from mulligan.workflows import limits
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.once.once_calls import OnceCalls


@pytest.mark.parametrize("value", ["run", "", 1, 0, None, "Step", ["step"]])
def test_another_value_is_refused_by_a_sentence(value: Any) -> None:
    with pytest.raises(
        DeclarationError, match=r"tool 'pay': once must be True, False, 'step' or 'conversation', but is"
    ):

        @tool(once=value)
        def pay() -> None: ...


def test_a_server_declares_it_for_all_tools_or_by_patterns() -> None:
    patterns = McpServer("shop", url="http://x", once=["create_*"])
    assert [patterns.once_for(each) for each in ("create_order", "list_orders")] == [True, False]
    for value in (True, False, "step", "conversation"):
        assert McpServer("shop", url="http://x", once=value).once_for("any") == value
    with pytest.raises(DeclarationError, match="once must be lists of names"):
        McpServer("shop", url="http://x", once=7)  # type: ignore[arg-type]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def respelled(value: Any, chance: random.Random) -> Any:
    """The same JSON value, with the fields in another order and whole numbers as floats."""
    if isinstance(value, dict):
        fields = [(name, respelled(each, chance)) for name, each in value.items()]
        chance.shuffle(fields)
        return dict(fields)
    if isinstance(value, list):
        return [respelled(each, chance) for each in value]
    return float(value) if type(value) is int else value


def is_equal(first: Any, second: Any) -> bool:
    """Whether two JSON values are equal: true is not 1."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(is_equal(first[name], second[name]) for name in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(is_equal, first, second))
    return bool(first == second)


@given(JSON, JSON, st.randoms(use_true_random=False))
def test_digests_are_equal_for_equal_json_only(first: Any, second: Any, chance: random.Random) -> None:
    assert call_digest("t", first) == call_digest("t", respelled(first, chance))
    assert (call_digest("t", first) == call_digest("t", second)) == is_equal(first, second)
    assert call_digest("t", first) != call_digest("u", first)


def test_an_argument_that_is_left_out_equals_its_default() -> None:
    assert call_digest("t", {"a": 1}, {"b": 2}) == call_digest("t", {"b": 2.0, "a": 1}, {"b": 2})
    assert call_digest("t", {"a": 1}, {"b": 2}) != call_digest("t", {"a": 1, "b": 3}, {"b": 2})


def remembered(count: int, *, text: str = "r", cut: bool = False) -> tuple[Conversation, OnceCalls]:
    """A conversation of so many calls that have succeeded. `cut`: whether a compaction has removed their messages."""
    conversation = Conversation()
    calls = OnceCalls(conversation)
    for number in range(count):
        added = ToolCall(id=f"c{number}", name="t", arguments="{}")
        conversation.append(AssistantMessage(role="assistant", tool_calls=[added]))
        conversation.append(ToolMessage(role="tool", call_id=added.id, name="t", text=text))
        calls.add(OnceCall(call_id=added.id, digests=[call_digest("t", number)], once=True))
    if cut:
        conversation.cut = len(conversation.messages)
    return conversation, calls


def test_the_newest_thousand_calls_count() -> None:
    _, calls = remembered(MOST_CALLS + 5)
    assert calls.succeeded([call_digest("t", 4)]) is None
    assert calls.succeeded([call_digest("t", 5)]) is not None
    assert len(calls.dump()) == MOST_CALLS
    assert len(str(calls.dump())) < 200 * MOST_CALLS


def test_results_that_the_conversation_still_has_are_not_carried_and_of_the_others_the_newest() -> None:
    conversation, calls = remembered(100, text="é" * 5_000)
    assert not any("text" in each for each in calls.dump())
    conversation.cut = len(conversation.messages)
    carried = [each.get("text") for each in calls.dump()]
    assert sum(len(text.encode()) for text in carried if text) == limits.ONCE_RESULTS_BYTES
    assert [text is None for text in carried] == sorted([text is None for text in carried], reverse=True)
    after = OnceCalls(Conversation())
    after.load(calls.dump())
    newest = after.succeeded([call_digest("t", 99)])
    oldest = after.succeeded([call_digest("t", 0)])
    assert newest is not None
    assert oldest is not None
    assert after.excerpt(newest) == ("é" * (EXCERPT_CHARS // 2), True)
    assert after.excerpt(oldest) == (None, False)
    assert after.dump() == calls.dump()


def test_what_a_run_leaves_to_the_one_that_resumes_it() -> None:
    calls = OnceCalls(Conversation())
    for once in (True, "step", "conversation"):
        calls.add(OnceCall(call_id=f"{once}", digests=["d"], once=once))
    assert [each.call_id for each in calls.left("failed")] == ["True", "conversation"]
    assert [each.call_id for each in calls.left("completed")] == ["conversation"]
    left = ResumedFrom(workflow_id="w", run_id="r", once=calls.left("failed"))
    assert ResumedFrom.model_validate_json(left.model_dump_json()) == left


STEP = st.lists(st.integers(0, 2), min_size=1, max_size=4)
OUTCOMES = st.lists(st.sampled_from(["ok", "error", "deny"]), max_size=4)


@settings(deadline=None, max_examples=60)
@given(st.lists(STEP, min_size=1, max_size=4), st.lists(OUTCOMES, min_size=3, max_size=3))
async def test_random_conversations_are_as_a_simple_model_says(
    steps: list[list[int]], outcomes: list[list[str]]
) -> None:
    """What happens to the nth execution of each call is given: it succeeds, it fails, or a person denies it before."""
    tries: dict[int, int] = defaultdict(int)
    effects: list[int] = []

    def next_outcome(number: int) -> str:
        given = outcomes[number]
        return given[tries[number]] if tries[number] < len(given) else "ok"

    @tool(once=True, needs_approval=True)
    def pay(number: int, ctx: ToolContext) -> str:
        outcome = next_outcome(number)
        tries[number] += 1
        if outcome == "error":
            raise ToolError("refused")
        effects.append(number)
        return f"paid {number}"

    def person(pending: Pending) -> Decide:
        number = pending.arguments["number"]
        is_denied = next_outcome(number) == "deny"
        tries[number] += is_denied
        return Decide(call_id=pending.call_id, decision="deny" if is_denied else "approve")

    turns = [Say(calls=[Call("pay", {"number": number}) for number in step]) for step in steps]
    agent = Agent(name="payer", model="scripted:none", tools=[pay], max_repeats=None)
    run = await run_agent(agent, "Go.", model=Model(*turns, "done"), person=person)
    assert run.error is None
    kinds = [each.result.error.kind if each.result and each.result.error else None for each in run.calls]
    assert (kinds, sorted(effects)) == model_of(steps, outcomes)


def model_of(steps: list[list[int]], outcomes: list[list[str]]) -> tuple[list[str | None], list[int]]:
    """The kind of each call's error, and the calls that have an effect."""
    left = [iter(each) for each in outcomes]
    kinds: list[str | None] = []
    succeeded: set[int] = set()
    for step in steps:
        denied: set[int] = set()
        for number in step:
            if number in succeeded or number in denied:
                kinds.append("duplicate_call")
                continue
            outcome = next(left[number], "ok")
            kinds.append({"ok": None, "error": "tool_error", "deny": "denied"}[outcome])
            (succeeded if outcome == "ok" else denied if outcome == "deny" else set()).add(number)
    return kinds, sorted(succeeded)
