"""The calls that a model reads of its earlier answers are those that were executed, for each provider."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mulligan import Agent, Call, InvalidToolInput, Say, ToolCall, ToolContext, tool
from mulligan.activities.answers.inspect_answer import with_executed_arguments
from mulligan.activities.answers.parsed_arguments import ParsedArguments
from mulligan.activities.calls_in_text.calls_in_text import as_text
from mulligan.activities.compaction.summary_prompt import transcript
from mulligan.activities.models.anthropic.anthropic import Anthropic
from mulligan.activities.models.google.google import Google
from mulligan.activities.models.openai.openai_chat import OpenAIChat, _without_tool_messages
from mulligan.activities.models.openai.openai_responses import OpenAIResponses
from mulligan.testing import AgentRun, ScriptedModel, run_agent
from mulligan.values import AssistantMessage, Message, Repair, StepCall, ToolMessage
from mulligan.wire.model_call import PreparedCall
from mulligan.wire.updates import Decide
from tests.support.cut_off_calls import SPELLINGS

RAN: dict[str, Any] = {}
"""The arguments of each call that was executed, by its id."""
TOOLS = ["send_mail", "count", "now"]


@tool
def send_mail(to: str, ctx: ToolContext, tags: list[str] | None = None, text: str = "none") -> str:
    """Send a mail."""
    RAN[ctx.call_id] = {"to": to, "tags": tags, "text": text}
    return "sent"


@tool
def count(numbers: list[int], ctx: ToolContext) -> int:
    """Count."""
    RAN[ctx.call_id] = {"numbers": numbers}
    return len(numbers)


@tool
def now(ctx: ToolContext) -> str:
    """Tell the time."""
    RAN[ctx.call_id] = {}
    return "noon"


@pytest.mark.parametrize(
    ("raw", "arguments", "repairs", "sent"),
    [
        ('{"a": 1}', None, [], None),
        ('{"a": 1}', {"a": 1, "b": 2}, [], None),
        ('{"a": "1"}', {"a": 1}, ["schema:number"], '{"a": 1}'),
        ("{'a': 1}", {"a": 1}, [], '{"a": 1}'),
        ("{'a': 1}", None, ["name"], None),
    ],
)
def test_a_call_is_sent_as_written_unless_its_arguments_were_repaired_or_are_no_object(
    raw: str, arguments: Any, repairs: list[str], sent: str | None
) -> None:
    call = ToolCall(id="c", name="n", arguments=raw)
    prepared = PreparedCall(arguments=arguments, repairs=[Repair(by=by, before=1, after=2) for by in repairs])
    executed, settled = with_executed_arguments(call, prepared, ParsedArguments.of(raw))
    assert executed.arguments == (sent or raw)
    assert (settled.arguments, settled.raw) == (arguments, None if sent is None else raw)


def receiver_is_to(invalid: InvalidToolInput) -> object:
    given = invalid.arguments
    return {"to": given["receiver"]} if isinstance(given, dict) and "receiver" in given else None


def sent_calls(messages: Sequence[Message]) -> list[dict[str, tuple[str, Any]]]:
    """For each API: the name and arguments of each call in the request, by the call's id."""
    chat, responses, claude, gemini, plain = (dict[str, tuple[str, Any]]() for _ in range(5))
    items = [json.loads(item) for message in messages for item in OpenAIChat().encode(message)]
    for item in items:
        for each in item.get("tool_calls", []):
            chat[each["id"]] = each["function"]["name"], json.loads(each["function"]["arguments"])
    for message in messages:
        for item in map(json.loads, OpenAIResponses().encode(message)):
            if item.get("type") == "function_call":
                responses[item["call_id"]] = item["name"], json.loads(item["arguments"])
        for turn in map(json.loads, Anthropic().encode(message)):
            uses = [block for block in turn["content"] if block["type"] == "tool_use"]
            claude |= {block["id"]: (block["name"], block["input"]) for block in uses}
        for turn in map(json.loads, Google().encode(message)):
            uses = [part["functionCall"] for part in turn["parts"] if "functionCall" in part]
            gemini |= {each["id"]: (each["name"], each["args"]) for each in uses}
    plainly = _without_tool_messages(items, as_text)
    written = "\n".join(str(item["content"]) for item in plainly if item["role"] == "assistant")
    calls = [part.partition("\n```")[0] for part in written.split("```json\n")[1:]]
    for call_id, each in zip(chat, map(json.loads, calls), strict=True):
        plain[call_id] = each["name"], each["arguments"]
    return [chat, responses, claude, gemini, plain]


def check(run: AgentRun, seen: Sequence[Message], calls: Sequence[StepCall]) -> None:
    """Compare the request after a step with what was executed in it."""
    results = {message.call_id: message.text for message in seen if isinstance(message, ToolMessage)}
    for sent in sent_calls(seen):
        assert [*sent] == [call.id for call in calls]
        for call in calls:
            name, arguments = sent[call.id]
            is_object = _is_object(call.raw_arguments)
            assert name == call.name
            if call.id in RAN:
                # Validated again, what the model reads is what the tool got.
                assert arguments == call.arguments or (is_object and arguments == json.loads(call.raw_arguments))
                assert {**_defaults(call.name), **call.arguments} == RAN[call.id]
            elif is_object:
                assert arguments == json.loads(call.raw_arguments)
            else:
                assert arguments == {}
                quoted = {call.raw_arguments, _respelled(call.raw_arguments)}
                assert not call.raw_arguments.strip() or any(f"You sent: {raw}" in results[call.id] for raw in quoted)
            assert "invalid_json" not in json.dumps(arguments)


def _defaults(name: str) -> dict[str, Any]:
    return {"tags": None, "text": "none"} if name == "send_mail" else {}


def _is_object(raw: str) -> bool:
    try:
        return isinstance(json.loads(raw, parse_constant=pytest.fail), dict)
    except ValueError:
        return False


def _respelled(raw: str) -> str:
    """JSON that is no object, as the feedback on invalid arguments quotes it."""
    try:
        return json.dumps(json.loads(raw), ensure_ascii=False)
    except ValueError:
        return raw


WORDS = st.lists(st.sampled_from([*"ab1 \"'\\{}[],:\n\té"]), max_size=5).map("".join)
MEANT = st.one_of(
    st.fixed_dictionaries({"to": WORDS}, optional={"tags": st.lists(WORDS, max_size=2), "text": WORDS}),
    st.fixed_dictionaries({"receiver": WORDS}),
    st.fixed_dictionaries({"numbers": st.lists(st.integers(-99, 99) | st.sampled_from(["5", "x"]), max_size=3)}),
    st.lists(st.integers(-9, 9), max_size=2),
    st.just({}),
    WORDS,
)


@st.composite
def calls_written(draw: st.DrawFn) -> list[Call]:
    """Up to six calls, in any spelling, of the tools, of near names and of unknown ones; some of them cut off."""
    calls = []
    for _ in range(draw(st.integers(1, 6))):
        raw = SPELLINGS[draw(st.sampled_from([*SPELLINGS]))](draw(MEANT))
        if draw(st.integers(0, 3)) == 0:
            raw = raw[: draw(st.integers(0, len(raw)))]
        calls.append(Call(draw(st.sampled_from([*TOOLS, *TOOLS, "Send_Mail", "functions.now", "mail"])), raw))
    return calls


@settings(derandomize=True, deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(calls_written())
def test_what_is_sent_back_parses_and_equals_what_was_executed(calls: list[Call]) -> None:
    asyncio.run(check_written(calls))


async def check_written(calls: list[Call]) -> None:
    seen: list[Message] = []

    def look(messages: Sequence[Message]) -> Say:
        seen[:] = messages
        return Say("done")

    RAN.clear()
    agent = Agent(name="a", model="scripted:test", tools=[send_mail, count, now], repair=receiver_is_to)
    run = await run_agent(agent, "Go.", model=ScriptedModel(Say(calls=calls), look))
    assert run.output == "done"
    assert [call.raw_arguments for call in run.calls] == [call.arguments for call in calls]
    check(run, seen, run.calls)
    assert run.messages[: len(seen)] == seen


async def test_calls_that_a_person_edited_are_sent_as_they_were_executed() -> None:
    """The step and the decision have what the model wrote; results, ids and the order of the calls stay."""

    @tool(needs_approval=True)
    def pay(amount: int, ctx: ToolContext) -> str:
        """Pay."""
        RAN[ctx.call_id] = {"amount": amount}
        return f"paid {amount}"

    seen: list[Message] = []

    def look(messages: Sequence[Message]) -> Say:
        seen[:] = messages
        return Say("done")

    written = ["{'amount': 1,}", '{"amount": 2}', '{"amount": 3}']
    edits = {1: 10, 2: 20}
    RAN.clear()
    agent = Agent(name="a", model="scripted:test", tools=[pay])
    run = await run_agent(
        agent,
        "Go.",
        model=ScriptedModel(Say(calls=[Call("pay", raw) for raw in written]), look),
        person=lambda waiting: Decide(
            call_id=waiting.call_id,
            decision="approve",
            arguments={"amount": edits[waiting.arguments["amount"]]} if waiting.arguments["amount"] in edits else None,
        ),
    )
    assert [call.raw_arguments for call in run.calls] == written
    assert [call.arguments for call in run.calls] == [{"amount": 10}, {"amount": 20}, {"amount": 3}] == [*RAN.values()]
    assert [call.decision and call.decision.before for call in run.calls] == [{"amount": 1}, {"amount": 2}, None]
    for sent in sent_calls(seen):
        assert [arguments for _, arguments in sent.values()] == [*RAN.values()]
    assert [message.text for message in seen if message.role == "tool"] == ["paid 10", "paid 20", "paid 3"]
    assert run.messages[: len(seen)] == seen


def test_a_summary_is_made_of_calls_in_the_same_form() -> None:
    message = AssistantMessage(role="assistant", tool_calls=[ToolCall(id="1", name="now", arguments="{'a': 1,}")])
    assert transcript([message], 10_000) == "[assistant]\ncalls now {}"
