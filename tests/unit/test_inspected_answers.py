"""Which calls of an answer run, and which are returned to the model: one table of answers, in runs without a server."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from mulligan import Agent, Call, Say, ToolStrategy, tool
from mulligan.activities.answers import size_limits
from mulligan.testing import AgentRun, ScriptedModel, run_agent
from mulligan.values import StepCall


@tool
def say(text: str = "") -> str:
    """Say."""
    return f"said {text[:9]}"


@tool
def send_mail(to: str) -> str:
    """Send."""
    return "sent"


class Sum(BaseModel):
    total: int


class Refusal(BaseModel):
    why: str


PLAIN = Agent(name="plain", model="openai:nobody", tools=[say, send_mail])
SUMS = Agent(name="sums", model="openai:nobody", tools=[say], output=ToolStrategy(Sum | Refusal))
OR_TEXT = Agent(name="sums", model="openai:nobody", tools=[say], output=ToolStrategy(Sum, or_text=True))


def outcome(call: StepCall) -> str:
    """`ran`, or the kind of the error."""
    assert call.result is not None
    return call.result.error.kind if call.result.error else "ran"


async def answered(*answers: Any, agent: Agent = PLAIN, **given: Any) -> AgentRun[Any]:
    return await run_agent(agent, "Go.", model=ScriptedModel(*answers, is_strict=False), **given)


async def outcomes(answer: Say, agent: Agent = PLAIN) -> list[str]:
    """What becomes of each call of the answer."""
    final = Say("done") if agent is PLAIN else Say(calls=[Call("Sum", {"total": 1})])
    run = await answered(answer, final, agent=agent, max_steps=2)
    return [outcome(call) for call in run.steps[0].tool_calls]


WHOLE, HALF = Call("say", {"text": "a"}), Call("say", '{"text": "a')


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([HALF], ["truncated_call"]),
        ([WHOLE], ["ran"]),
        ([WHOLE, HALF], ["ran", "truncated_call"]),
        ([WHOLE, WHOLE], ["ran", "ran"]),
        ([HALF, WHOLE], ["invalid_json", "ran"]),  # the model has gone on after it: it was not cut off
        ([WHOLE, Call("say", "")], ["ran", "truncated_call"]),
        ([WHOLE, Call("nothing", "{")], ["ran", "unknown_tool"]),
    ],
)
async def test_only_the_last_call_of_an_answer_may_have_been_cut_off(calls: list[Call], expected: list[str]) -> None:
    """And only if its object is not whole."""
    assert await outcomes(Say(calls=calls, finish_reason="length")) == expected


@pytest.mark.parametrize(("reason", "by"), [("length", "the length limit"), ("content_filter", "a content filter")])
async def test_the_model_is_told_what_has_cut_it_off(reason: str, by: str) -> None:
    run = await answered(Say(calls=[HALF], finish_reason=reason), "done")
    assert run.calls[0].result is not None
    assert f"cut off by {by}" in run.calls[0].result.text


async def test_a_half_call_of_an_answer_that_was_not_cut_off_is_a_mistake() -> None:
    assert await outcomes(Say(calls=[WHOLE, Call("send_mail", '{"to": "a"')])) == ["ran", "ran"]  # the brace is added
    assert await outcomes(Say(calls=[WHOLE, Call("send_mail", '{"to": "a')])) == ["ran", "invalid_json"]


def named(call_id: str | None, text: Any = "a", name: str = "say") -> Call:
    return Call(name, {"text": text} if not isinstance(text, str) or text[:1] != "{" else text, id=call_id)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([named("1"), named("1")], ["ran", "duplicate_call"]),
        ([named("1"), named("1", '{ "text":"a" }')], ["ran", "duplicate_call"]),
        ([named("1"), named("2")], ["ran", "ran"]),
        ([named("1"), named("1", "b")], ["ran", "ran"]),
        ([named("1"), named("1"), named("1")], ["ran", "duplicate_call", "duplicate_call"]),
        ([named("1"), named("1", "b"), named("1")], ["ran", "ran", "duplicate_call"]),
        ([named(""), named("")], ["ran", "ran"]),
    ],
)
async def test_a_call_that_an_answer_has_twice_runs_once(calls: list[Call], expected: list[str]) -> None:
    """With the same id, tool and arguments: two equal calls with ids of their own are meant."""
    assert await outcomes(Say(calls=calls)) == expected


async def test_the_calls_beyond_the_most_are_one_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_limits, "MOST_CALLS", 2)
    assert await outcomes(Say(calls=[WHOLE] * 2)) == ["ran", "ran"]
    run = await answered(Say(calls=[WHOLE] * 5), "done")
    assert [outcome(each) for each in run.calls] == ["ran", "ran", "invalid_arguments"]
    assert run.calls[2].result is not None
    assert "5 calls" in run.calls[2].result.text


async def test_only_calls_beyond_their_share_are_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a fixer has made them so long."""
    monkeypatch.setattr(size_limits, "ARGUMENTS_BYTES", 3_000)
    long = Call("say", {"text": "x" * 2_500})
    assert await outcomes(Say(calls=[WHOLE, long])) == ["ran", "ran"]
    assert await outcomes(Say(calls=[WHOLE, long, Call("say", {"text": "y" * 900})])) == [
        "ran",
        "invalid_arguments",
        "ran",
    ]
    run = await answered(Say(calls=[Call("say", {"text": "x" * 9_000})]), "done")
    [call] = run.calls
    assert call.result is not None
    assert "3,000" in call.result.text
    assert call.raw_arguments.startswith('{"text": "xxx')
    assert len(call.raw_arguments) < 1_100

    @tool(fix=lambda invalid: {"text": "z" * 4_000})
    def echo(text: str) -> str:
        """Echo."""
        return text

    agent = Agent(name="plain", model="openai:nobody", tools=[echo])
    run = await answered(Say(calls=[Call("echo", {"words": "x"})]), "done", agent=agent)
    assert run.calls[0].result is not None
    assert "3,000" in run.calls[0].result.text


@pytest.mark.parametrize(
    ("written", "after"),
    [
        ("Say", "say"),
        ("functions.say", "say"),
        ("function:say", "say"),
        ("tools/sendMail", "send_mail"),
        ("default_api:send-mail", "send_mail"),
        ("say", None),
    ],
)
async def test_a_name_that_is_spelled_otherwise_means_its_tool(written: str, after: str | None) -> None:
    run = await answered(Say(calls=[Call(written, {"text": "a"} if "ay" in written else {"to": "a"})]), "done")
    [call] = run.calls
    assert (call.name, outcome(call)) == (after or written, "ran")
    assert [(each.by, each.before, each.after) for each in call.repairs] == (
        [("name", written, after)] if after else []
    )


SUM, NO = Call("Sum", {"total": 3}), Call("Refusal", {"why": "no"})


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([SUM], ["ran"]),
        ([Call("Sum", {"total": "many"})], ["invalid_output"]),
        ([SUM, NO], ["multiple_outputs", "multiple_outputs"]),
        ([SUM, SUM], ["multiple_outputs", "multiple_outputs"]),
        ([Call("Sum", {"total": 3}, id="1"), Call("Sum", {"total": 3}, id="1")], ["ran", "duplicate_call"]),
        ([WHOLE, SUM], ["ran", "premature_output"]),
        ([SUM, WHOLE], ["premature_output", "ran"]),
        ([Call("say", {"text": 5}), SUM], ["invalid_arguments", "premature_output"]),
    ],
)
async def test_an_output_is_the_only_call_of_its_answer(calls: list[Call], expected: list[str]) -> None:
    assert await outcomes(Say(calls=calls), SUMS) == expected


async def test_each_call_with_an_output_has_the_span_of_a_first_attempt() -> None:
    """No activity runs for it, so nothing else counts attempts."""
    wrong, right = (Say(calls=[Call("Sum", {"total": total})]) for total in ("x", 1))
    run = await answered(wrong, right, agent=SUMS)
    found = [each for each in run.spans if each.name == "ai.toolCall"]
    assert [(each.status, each.attributes["mulligan.step"], each.attributes["mulligan.attempt"]) for each in found] == [
        ("ERROR", 1, 1),
        ("UNSET", 2, 1),
    ]


@pytest.mark.parametrize(
    ("answers", "agent", "output", "steps"),
    [
        ([Say("Hi.")], PLAIN, "Hi.", 1),
        ([Say(" \n"), Say("Hi.")], PLAIN, "Hi.", 2),  # an empty answer is a mistake, once
        ([Say(""), Say("")], PLAIN, "", 2),
        ([Say("", finish_reason="length")], PLAIN, "", 1),
        ([Say(calls=[WHOLE]), Say(""), Say("Hi.")], PLAIN, "Hi.", 3),
        ([Say("Hi."), Say(calls=[SUM])], SUMS, Sum(total=3), 2),
        ([Say("Hi.")], OR_TEXT, "Hi.", 1),
        ([Say(" "), Say(calls=[SUM])], OR_TEXT, Sum(total=3), 2),
        ([Say(calls=[SUM])], OR_TEXT, Sum(total=3), 1),
    ],
)
async def test_which_text_is_the_output(answers: list[Say], agent: Agent, output: Any, steps: int) -> None:
    run = await answered(*answers, agent=agent)
    assert run.result is not None
    assert (run.output, run.result.steps) == (output, steps)


@pytest.mark.parametrize(
    ("mistake", "fails"),
    [
        (Say(calls=[Call("nothing", {})]), True),
        (Say(calls=[Call("send_mail", {})]), True),
        (Say(calls=[HALF], finish_reason="length"), True),
        (Say(""), False),  # a mistake of the whole answer
    ],
)
async def test_a_strict_run_fails_by_a_mistake_in_a_call(mistake: Say, fails: bool) -> None:
    run = await answered(mistake, "done", on_invalid_tool_input="throw")
    assert (run.error is not None) is fails
    run = await answered(mistake, "done", on_invalid_tool_input="feedback")
    assert run.error is None


async def test_a_repeated_mistake_gets_more_help_each_time() -> None:
    """Also in another spelling. The first feedback has no example."""
    wrong = [Say(calls=[Call("send_mail", text)]) for text in ('{"x": 1}', '{ "x":1 }', '{"x":  1}')]
    run = await answered(*wrong, "done", max_steps=4)
    texts = [call.result.text for call in run.calls if call.result]
    assert "same call before" not in texts[0]
    assert texts[1].startswith("You made this same call before")
    assert 'A minimal call of it that is valid has the arguments: {"to":' in texts[1]
    assert texts[2].startswith("This is the 3rd time that you make this same call.")
    assert "You sent an object with `x`: number.\nIt takes an object with `to`: string, required." in texts[2]


async def test_another_mistake_of_the_same_tool_begins_anew() -> None:
    run = await answered(Say(calls=[Call("send_mail", {"x": 1})]), Say(calls=[Call("send_mail", {"x": 2})]), "done")
    assert all(call.result and "before" not in call.result.text for call in run.calls)
    run = await answered(Say(calls=[Call("nothing", {"x": 1})]), Say(calls=[Call("nothing", {"x": 2})]), "done")
    assert run.calls[1].result is not None
    assert run.calls[1].result.text.startswith("You made this same call before")
