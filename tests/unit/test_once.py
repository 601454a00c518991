"""`once`: the declaration, which calls are equal, what is remembered, and random conversations compared with a simple model."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mulligan import Agent, Call, DeclarationError, McpServer, Say, ToolContext, ToolError, tool
from mulligan.activities.tool_running.thread_bounds import TookTooLong
from mulligan.once import EXCERPT_CHARS, MOST_CALLS, OnceCall, call_digest
from mulligan.schema.argument_digest import argument_digest
from mulligan.testing import ScriptedModel, run_agent
from mulligan.values import AssistantMessage, Message, ToolCall, ToolMessage, Usage
from mulligan.wire.start_input import Carried, StartInput
from mulligan.wire.updates import Decide, Pending
from mulligan.workflows import limits
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.records import StepRecord
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
    assert [patterns.options_of(each)["once"] for each in ("create_order", "list_orders")] == [True, False]
    for value in (True, False, "step", "conversation"):
        assert McpServer("shop", url="http://x", once=value).options_of("any").get("once", False) == value
    with pytest.raises(
        DeclarationError, match="once must be True, False, 'step', 'conversation', or a list of names, but is"
    ):
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


def digest(name: str, arguments: Any) -> str:
    return call_digest(name, argument_digest(arguments))


@given(JSON, JSON, st.randoms(use_true_random=False))
def test_digests_are_equal_for_equal_json_only(first: Any, second: Any, chance: random.Random) -> None:
    assert digest("t", first) == digest("t", respelled(first, chance))
    assert (digest("t", first) == digest("t", second)) == is_equal(first, second)
    assert digest("t", first) != digest("u", first)


def remembered(count: int, *, text: str = "r", cut: bool = False) -> tuple[Conversation, OnceCalls]:
    """A conversation of so many calls that have succeeded. `cut`: whether a compaction has removed their messages."""
    conversation = Conversation()
    calls = OnceCalls(conversation)
    for number in range(count):
        added = ToolCall(id=f"c{number}", name="t", arguments="{}")
        conversation.append(AssistantMessage(role="assistant", tool_calls=[added]))
        conversation.append(ToolMessage(role="tool", call_id=added.id, name="t", text=text))
        calls.add(OnceCall(call_id=added.id, digests=[digest("t", number)], once=True))
    if cut:
        conversation.cut = len(conversation.messages)
    return conversation, calls


def test_the_newest_thousand_calls_count() -> None:
    _, calls = remembered(MOST_CALLS + 5)
    assert calls.succeeded([digest("t", 4)]) is None
    assert calls.succeeded([digest("t", 5)]) is not None
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
    newest = after.succeeded([digest("t", 99)])
    oldest = after.succeeded([digest("t", 0)])
    assert newest is not None
    assert oldest is not None
    assert after.excerpt(newest) == ("é" * (EXCERPT_CHARS // 2), True)
    assert after.excerpt(oldest) == (None, False)
    assert after.dump() == calls.dump()


class ReadMessages(list[Message]):
    """Messages that count how many of them are read."""

    read = 0

    def __iter__(self) -> Iterator[Message]:
        self.read += len(self)
        return super().__iter__()

    def __reversed__(self) -> Iterator[Message]:
        self.read += len(self)
        return super().__reversed__()

    def __getitem__(self, at: Any) -> Any:
        taken = super().__getitem__(at)
        self.read += len(taken) if isinstance(at, slice) else 1
        return taken


@pytest.mark.parametrize(("count", "times"), [(0, 0), (1, 3), (MOST_CALLS, 3)])
def test_continue_as_new_reads_each_message_a_few_times_however_many_calls_there_are(count: int, times: int) -> None:
    """A scan for each call would take longer than the SDK lets a workflow task run. Without calls nothing is read."""
    conversation, calls = remembered(count, cut=True)
    messages = conversation.messages = ReadMessages(conversation.messages or remembered(1)[0].messages)
    conversation.cut = len(messages)
    calls.dump()
    calls.for_resume("failed")
    assert messages.read <= 2 * times * len(messages)


def test_what_a_run_leaves_to_the_one_that_resumes_it() -> None:
    calls = OnceCalls(Conversation())
    for once in (True, "step", "conversation"):
        calls.add(OnceCall(call_id=f"{once}", digests=["d"], once=once))
    assert [each.call_id for each in calls.for_resume("failed")] == ["True", "conversation"]
    assert [each.call_id for each in calls.for_resume("completed")] == ["conversation"]
    left = Carried(once=calls.for_resume("failed"))
    assert Carried.model_validate_json(left.model_dump_json()) == left


def test_a_fork_gets_the_calls_that_counted_at_its_step() -> None:
    """Also those of a turn that has ended, after continue-as-new, too; together with the others, the newest thousand."""
    conversation, calls = remembered(2)
    calls.add(OnceCall(call_id="always", digests=["d"], once="conversation"))
    conversation.steps = [StepRecord(at=at, usage=Usage(), model="m") for at in (0, 2)]
    calls.begin_turn(StartInput(agent="a", prompt="p"), "completed")
    assert calls.succeeded([digest("t", 0)]) is None
    after = OnceCalls(conversation)
    after.load(calls.dump())
    for each in (calls, after):
        assert [call.call_id for call in each.for_fork(2, {"c1"})] == ["c0", "always"]
        assert [call.until for call in each.for_fork(2, ())] == [None] * 3
        assert [call.call_id for call in each.for_fork(3, ())] == ["always"]
        assert [call.call_id for call in each.for_resume("failed")] == ["always"]
    for number in range(MOST_CALLS - 2):
        after.add(OnceCall(call_id=f"n{number}", digests=["n"], once=True))
    assert [call.call_id for call in after.for_fork(2, ())][:3] == ["c1", "always", "n0"]
    assert len(after.dump()) == MOST_CALLS


EDITED = 10
"""A person who edits a call adds this to its number."""
NUMBERS = (0, 1, EDITED)
STEP = st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=4).filter(lambda step: not {0, EDITED} <= {*step})
"""No step has a call and another that it may be edited to: which of them is first would depend on their order."""
OUTCOMES = st.lists(st.sampled_from(["ok", "error", "deny", "lost", "edit", "edit lost"]), max_size=4)


@settings(deadline=None, max_examples=60)
@given(st.lists(STEP, min_size=1, max_size=4), st.tuples(*[OUTCOMES] * len(NUMBERS)))
@example([[0], [0], [EDITED], [0]], (["edit lost", "lost"], [], ["ok"]))
async def test_random_conversations_are_as_a_simple_model_says(
    steps: list[list[int]], outcomes: tuple[list[str], ...]
) -> None:
    """What happens to the nth call that is asked about is given.

    It succeeds, it fails, it is lost after it has begun, or a person denies it, or edits it.
    """
    given = dict(zip(NUMBERS, map(iter, outcomes), strict=True))
    approved: dict[str, str] = {}
    executed: list[tuple[int, str]] = []

    @tool(once=True, needs_approval=True)
    def pay(number: int, ctx: ToolContext) -> str:
        executed.append((number, ctx.idempotency_key))
        if approved[ctx.call_id] == "error":
            raise ToolError("refused")
        if "lost" in approved[ctx.call_id]:
            raise TookTooLong(1)
        return f"paid {number}"

    def person(pending: Pending) -> Decide:
        number = pending.arguments["number"]
        outcome = approved[pending.call_id] = next(given[number], "ok")
        return Decide(
            call_id=pending.call_id,
            decision="deny" if outcome == "deny" else "approve",
            arguments={"number": number + EDITED} if "edit" in outcome else None,
        )

    turns = [Say(calls=[Call("pay", {"number": number}) for number in step]) for step in steps]
    agent = Agent(name="payer", model="scripted:none", tools=[pay], max_repeats=None)
    run = await run_agent(agent, "Go.", model=ScriptedModel(*turns, "done"), person=person)
    assert run.error is None
    kinds = [each.result.error.kind if each.result and each.result.error else None for each in run.calls]
    expected_kinds, expected = model_of(steps, outcomes)
    assert kinds == expected_kinds
    assert with_first_uses(executed) == with_first_uses(expected)


def with_first_uses(executed: Sequence[tuple[int, object]]) -> list[tuple[int, int]]:
    """The executed calls by their number, each with the index of the first of them that has its key."""
    ordered = sorted(executed, key=lambda each: each[0])
    keys = [key for _, key in ordered]
    return [(number, keys.index(key)) for number, key in ordered]


def model_of(
    steps: list[list[int]], outcomes: Sequence[list[str]]
) -> tuple[list[str | None], list[tuple[int, object]]]:
    """The kind of each call's error, and the calls that are executed, each with its key."""
    left = dict(zip(NUMBERS, map(iter, outcomes), strict=True))
    kinds: list[str | None] = []
    executed: list[tuple[int, object]] = []
    succeeded: set[int] = set()
    keys: dict[int, object] = {}
    for step in steps:
        denied: set[int] = set()
        for number in step:
            if number in succeeded or number in denied:
                kinds.append("duplicate_call")
                continue
            outcome = next(left[number], "ok")
            if outcome == "deny":
                denied.add(number)
                kinds.append("denied")
                continue
            work = number + EDITED if "edit" in outcome else number
            if work in succeeded:
                kinds.append("duplicate_call")
                continue
            key = keys.get(work, object())
            executed.append((work, key))
            if "lost" in outcome:
                keys[work] = key
            elif outcome != "error":
                succeeded |= {number, work}
            kinds.append("tool_timeout" if "lost" in outcome else "tool_error" if outcome == "error" else None)
    return kinds, executed
