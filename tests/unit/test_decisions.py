"""What people may reply to a call that waits, and what comes of it: roles, edits, questions, time limits, late replies."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan import Agent, Answer, Approvals, Call, Decide, Pending, Say, ToolCall, ToolContext, tool
from mulligan.activities.check_answer import parse_answer
from mulligan.testing import AgentRun, ScriptedModel, run_agent
from mulligan.tools import ask_person

MODEL = "openai:nobody"


def boss_above_five(arguments: dict[str, Any], ctx: ToolContext) -> bool | str:
    if arguments["euros"] > 100:
        raise ValueError("too much")
    return "boss" if arguments["euros"] > 5 else True


@tool(needs_approval=boss_above_five, approval_timeout=60)
def pay(euros: int, to: str = "Ada") -> str:
    """Pay."""
    return f"paid {euros} to {to}"


def guard(call: ToolCall, ctx: ToolContext) -> str | None:
    return "not to Eve" if "Eve" in call.arguments else None


clerk = Agent(name="clerk", model=MODEL, tools=[pay, ask_person], guard=guard)


class Person:
    """Replies to the calls that wait in their order: fields of a decision, an answer's text, or None for no reply."""

    def __init__(self, *replies: dict[str, Any] | str | None) -> None:
        self.seen: list[Pending] = []
        self._replies = [*replies]

    def __call__(self, wait: Pending) -> Decide | Answer | None:
        self.seen.append(wait)
        reply = self._replies.pop(0)
        if isinstance(reply, str):
            return Answer(call_id=wait.call_id, text=reply, by="Bo")
        return None if reply is None else Decide(**{"call_id": wait.call_id, "decision": "approve", **reply})


async def run(person: Person, *calls: Call) -> AgentRun[Any]:
    return await run_agent(clerk, "Go.", model=ScriptedModel(Say(calls=calls), "Done."), person=person)


def payment(euros: int, **more: Any) -> Call:
    return Call("pay", {"euros": euros, **more})


def text_of(ran: AgentRun[Any]) -> str:
    result = ran.calls[0].result
    assert result is not None
    return result.text


@pytest.mark.parametrize(
    ("euros", "reply", "result"),
    [
        (5, {}, "paid 5 to Ada"),
        (5, {"roles": []}, "paid 5 to Ada"),
        (6, {"roles": ["boss"]}, "paid 6 to Ada"),
        (6, {}, "paid 6 to Ada"),  # whoever has all roles
        (5, {"decision": "deny", "reason": "no", "by": "Ada"}, "`pay` was not run: Ada denied it: no"),
        (5, {"arguments": {"euros": 4}}, "paid 4 to Ada"),
        (5, {"arguments": {"euros": "4"}}, "paid 4 to Ada"),
        (6, {"arguments": {"euros": 4}, "roles": ["boss"]}, "paid 4 to Ada"),
        (5, {"arguments": {"euros": 7}, "roles": ["boss"]}, "paid 7 to Ada"),
        (5, {"arguments": {"euros": 101}}, "`pay` was not run"),  # the policy that fails denies
        (5, None, "`pay` was not run: nobody approved of it in time."),
    ],
)
async def test_what_a_person_decides_is_what_happens(euros: int, reply: dict[str, Any] | None, result: str) -> None:
    ran = await run(Person(reply), payment(euros))
    assert text_of(ran).startswith(result)
    error = ran.calls[0].result and ran.calls[0].result.error
    assert (error.kind if error else None) == (None if result.startswith("paid") else "denied")


@pytest.mark.parametrize(
    ("euros", "reply", "why"),
    [
        (6, {"roles": ["clerk"]}, 'waits for somebody with the role "boss"; you do not have it'),
        (6, {"roles": ["clerk"], "decision": "deny"}, 'waits for somebody with the role "boss"; you do not have it'),
        (6, {"roles": ["clerk"], "arguments": {"euros": 4}}, 'waits for somebody with the role "boss"'),
        (5, {"call_id": "nothing"}, '"nothing"'),
        (5, {"edits": 1}, "Somebody has edited the arguments"),
        (5, {"arguments": {"euros": 4}, "decision": "deny"}, '"arguments" is allowed with "approve" only'),
        (
            5,
            {"arguments": {"euros": "many"}},
            "`pay` does not take these arguments: euros: Input should be a valid integer",
        ),
        (5, {"arguments": {"euros": 4, "tip": 1}}, 'has fields that are not known: "tip"'),
        (5, {"arguments": {"euros": 4, "to": "Eve"}}, "The agent's guard refuses: not to Eve"),
    ],
)
async def test_a_reply_that_cannot_be_is_refused_with_a_sentence(euros: int, reply: dict[str, Any], why: str) -> None:
    with pytest.raises(AssertionError) as refused:
        await run(Person(reply), payment(euros))
    assert why in str(refused.value)


async def test_a_call_that_was_edited_beyond_a_persons_role_waits_for_another_one() -> None:
    """Who sees the edit, and who has made it. Their decision names both."""
    person = Person(
        {"arguments": {"euros": 7}, "roles": ["clerk"], "by": "Ada"}, {"roles": ["boss"], "by": "Bo", "edits": 1}
    )
    ran = await run(person, payment(5))
    first, second = person.seen
    assert (first.role, first.edits, first.arguments, second.role, second.edits) == (None, 0, {"euros": 5}, "boss", 1)
    assert (second.arguments, second.edited_by, second.text) == ({"euros": 7}, "Ada", 'pay {"euros": 7}')
    decision = ran.calls[0].decision
    assert decision is not None
    assert (decision.by, decision.edited_by, decision.edited, decision.before) == ("Bo", "Ada", True, {"euros": 5})
    assert text_of(ran) == "paid 7 to Ada"
    assert [event.type for event in ran.events if event.type in ("waiting", "edited", "decided")] == [
        "waiting", "edited", "decided",
    ]  # fmt: skip


async def test_an_edit_of_somebody_who_could_approve_it_runs_at_once() -> None:
    """Also one that needs a role no more."""
    person = Person({"arguments": {"euros": 4}, "roles": ["boss"], "by": "Bo"})
    ran = await run(person, payment(6))
    assert (text_of(ran), len(person.seen)) == ("paid 4 to Ada", 1)


async def test_a_question_is_answered_and_an_approval_is_decided_on() -> None:
    ran = await run(Person("Tuesday."), Call("ask_person", {"question": "When?"}))
    assert text_of(ran) == "Tuesday."
    decision = ran.calls[0].decision
    assert decision is not None
    assert (decision.kind, decision.decision, decision.by) == ("question", "answer", "Bo")
    with pytest.raises(AssertionError, match='waits for an answer; use the update "answer"'):
        await run(Person({}), Call("ask_person", {"question": "When?"}))
    with pytest.raises(AssertionError, match='waits for approval; use the update "decide"'):
        await run(Person("Tuesday."), payment(5))


async def test_a_call_that_fails_the_run_leaves_each_other_call_what_is_known_of_it() -> None:
    """Two were asked about, one would have waited for an equal one; none has run."""

    @tool(once=True, needs_approval=True)
    def book(n: int) -> str:
        """Book."""
        return "booked"

    @tool(handle_errors=False)
    def fail() -> str:
        """Fail."""
        raise ValueError("no way")

    agent = Agent(name="clerk", model=MODEL, tools=[book, fail])
    calls = [Call("book", {"n": 1}), Call("book", {"n": 1}), Call("fail"), Call("book", {"n": 2})]
    ran = await run_agent(agent, "Go.", model=ScriptedModel(Say(calls=calls)))
    assert ran.error is not None
    texts = [call.result.text if call.result else "" for call in ran.calls]
    assert texts[0].startswith("`book` was not run: nobody had decided on it when the run ended.")
    assert texts[1].startswith("`book` was not run: the run ended first.")
    assert texts[3].startswith("`book` was not run: nobody had decided on it when the run ended.")
    assert [call.attempts for call in ran.calls] == [0, 0, 1, 0]


async def test_the_time_limit_of_an_agents_approvals_counts_for_tools_without_their_own() -> None:
    @tool(needs_approval=True)
    def book(n: int) -> str:
        """Book."""
        return "booked"

    agent = Agent(name="clerk", model=MODEL, tools=[book, pay], features=[Approvals(timeout=600, reminder=200)])
    person = Person(None, None, None, None, None, None)
    calls = [Call("book", {"n": 1}), payment(1)]
    ran = await run_agent(agent, "Go.", model=ScriptedModel(Say(calls=calls), "Done."), person=person)
    lasts = {each.tool: each.until for each in person.seen}
    assert lasts["book"] is not None
    assert lasts["pay"] is not None
    assert lasts["book"] > lasts["pay"]
    reminders = [event.call_id for event in ran.events if event.type == "reminder"]
    assert reminders == [ran.calls[0].id]
    assert all(call.result and call.result.error and call.result.error.kind == "denied" for call in ran.calls)


ONE = {"properties": {"size": {"type": "string"}}}
NUMBER = {"properties": {"count": {"type": "integer"}}}
TWO = {"properties": {"size": {"type": "string"}, "count": {"type": "integer", "default": 1}}}


@pytest.mark.parametrize(
    ("schema", "text", "content"),
    [
        (ONE, '{"size": "L"}', {"size": "L"}),
        (ONE, "L", {"size": "L"}),
        (ONE, "5", {"size": "5"}),  # a text stays one
        (ONE, '"L"', {"size": '"L"'}),
        (NUMBER, "5", {"count": 5}),
        (NUMBER, "many", {"count": "many"}),  # the schema refuses it
        (TWO, '{"size": "L"}', {"size": "L", "count": 1}),
        (TWO, '{"size": "L", "count": 2}', {"size": "L", "count": 2}),
        ({}, "{}", {}),
        ({"properties": 5}, "{}", {}),
    ],
)
def test_the_answer_to_a_question_with_a_schema_is_an_object(schema: Any, text: str, content: Any) -> None:
    """Of one field, its value is enough."""
    assert parse_answer(schema, text) == content


@pytest.mark.parametrize(
    ("schema", "text", "why"),
    [
        (TWO, "L", 'Answer with a JSON object with the fields "size", "count".'),
        (TWO, "[1]", 'Answer with a JSON object with the fields "size", "count".'),
        ({}, "L", 'Answer with "{}".'),
        (ONE, '{"colour": 1}', 'The question has no field "colour"; it has: "size".'),
        ({}, '{"colour": 1}', 'The question has no field "colour"; it has: none.'),
    ],
)
def test_another_answer_is_refused_with_the_fields(schema: Any, text: str, why: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_answer(schema, text)
    assert str(refused.value) == why
