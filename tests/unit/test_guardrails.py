"""`Guardrails` and `Guarded` in whole runs: what is checked when, and what becomes of the answer that is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from mulligan import (
    Agent,
    AnswerAgain,
    Call,
    Decide,
    Guarded,
    Guardrails,
    Message,
    Pending,
    Say,
    StructuredOutputValidationError,
    ToolContext,
    ToolStrategy,
    tool,
)
from mulligan.testing import AgentRun, ScriptedModel, run_agent

MODEL = "openai:nobody"
CHECKED: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_checked() -> None:
    CHECKED.clear()


class Query(BaseModel):
    sql: str


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def no_homework(messages: list[Message], ctx: ToolContext) -> str | None:
    CHECKED.append(("input", [each.text for each in messages], ctx.metadata.get("class")))
    if "broken" in messages[-1].text:
        raise ValueError("no school today")
    if "slow" in messages[-1].text:
        await asyncio.sleep(60)
    return "this is homework" if "2x" in messages[-1].text else None


def no_phone_numbers(answer: str, ctx: ToolContext) -> str | None:
    CHECKED.append(("output", answer))
    return "it has a phone number" if "555" in answer else None


def only_select(query: Query, ctx: ToolContext) -> Query:
    if "DROP" in query.sql:
        raise AnswerAgain("Only SELECT is allowed.")
    if "BUG" in query.sql:
        raise KeyError("a secret")
    return Query(sql=" ".join(query.sql.split()))


def shouted(answer: str, ctx: ToolContext) -> str:
    if answer == "hm":
        raise AnswerAgain("Say more.")
    return answer.upper()


teacher = Agent(
    name="teacher", model=MODEL, tools=[add], features=[Guardrails(input=[no_homework], output=[no_phone_numbers])]
)
impatient = Agent(name="teacher", model=MODEL, features=[Guardrails(input=[no_homework], timeout=0.1)])
analyst = Agent(
    name="analyst", model=MODEL, output=ToolStrategy(Query), features=[Guardrails(validators=[only_select], retries=1)]
)
shouter = Agent(name="shouter", model=MODEL, tools=[add], features=[Guardrails(validators=[shouted], retries=2)])


async def run(agent: Agent[Any], prompt: str, *turns: Any, **given: Any) -> AgentRun[Any]:
    return await run_agent(agent, prompt, model=ScriptedModel(*turns, is_strict=False), **given)


def ended(ran: AgentRun[Any]) -> tuple[Any, ...]:
    assert ran.result is not None
    return ran.result.status, ran.result.output, ran.result.reason


async def test_an_input_guardrail_ends_the_turn_before_a_model_is_called() -> None:
    ran = await run(teacher, "Solve 2x = 4", "never", metadata={"class": "4b"})
    assert ended(ran) == ("refused", None, "The input guardrail `no_homework` refused it: this is homework")
    assert (ran.steps, CHECKED) == ([], [("input", ["Solve 2x = 4"], "4b")])


async def test_an_input_is_checked_once_and_an_answer_at_its_end() -> None:
    """Not the text beside calls."""
    ran = await run(teacher, "1 + 2?", Say("I call 555.", calls=[Call("add", {"a": 1, "b": 2})]), "It is 3.")
    assert ended(ran) == ("completed", "It is 3.", None)
    assert CHECKED == [("input", ["1 + 2?"], None), ("output", "It is 3.")]


async def test_an_output_guardrail_ends_the_turn_without_an_output() -> None:
    ran = await run(teacher, "Whom do I call?", "Call 555 1234.")
    assert ended(ran) == ("refused", None, "The output guardrail `no_phone_numbers` refused it: it has a phone number")


async def test_an_answer_that_is_not_final_is_not_checked() -> None:
    """One that was cut off, or is empty, is none."""
    ran = await run(teacher, "Go.", Say("Call 555", finish_reason="length"))
    assert ended(ran)[:2] == ("truncated", "Call 555")
    await run(teacher, "Go.", Say(""), Say("Fine."))
    assert [each for each in CHECKED if each[0] == "output"] == [("output", "Fine.")]


@pytest.mark.parametrize(
    ("agent", "prompt", "why"), [(teacher, "broken", "failed"), (impatient, "slow", "did not answer")]
)
async def test_a_guardrail_that_fails_or_hangs_refuses(agent: Agent[Any], prompt: str, why: str) -> None:
    status, output, reason = ended(await run(agent, prompt, "never"))
    assert (status, output) == ("refused", None)
    assert reason.startswith(f"The input guardrail `no_homework` {why}")


def query(sql: str) -> Say:
    return Say(calls=[Call("Query", {"sql": sql})])


async def test_a_validator_changes_the_answer() -> None:
    ran = await run(analyst, "Go.", query("SELECT  1\n"))
    assert (ran.output, ran.result and ran.result.output_type) == (Query(sql="SELECT 1"), "Query")
    assert (await run(shouter, "Go.", "Hello.")).output == "HELLO."


async def test_a_validator_wants_another_answer_and_the_call_has_that_as_its_one_result() -> None:
    ran = await run(analyst, "Go.", query("DROP x"), query("SELECT 1"))
    assert ran.output == Query(sql="SELECT 1")
    first, second = (call.result for call in ran.calls)
    assert first is not None
    assert first.error is not None
    assert first.error.kind == "invalid_output"
    assert "The validator `only_select` does not accept the answer." in first.text
    assert "Only SELECT is allowed." in first.text
    assert second is not None
    assert second.error is None
    assert ran.result is not None
    assert ran.result.recovered_failures == 1


async def test_a_text_that_a_validator_refuses_is_answered_by_a_user_message() -> None:
    ran = await run(shouter, "Go.", "hm", "Hello.")
    assert (ran.output, ran.result and ran.result.recovered_failures) == ("HELLO.", 1)
    assert [("Say more." in each.text) for each in ran.messages if each.role == "user"] == [False, True]


@pytest.mark.parametrize(
    ("agent", "answers", "fails"),
    [
        (analyst, [query("DROP a"), query("DROP b")], True),
        (analyst, [query("DROP a"), query("SELECT 1")], False),
        (shouter, ["hm", "hm", "Hello."], False),
        (shouter, ["hm", "hm", "hm"], True),
        (shouter, ["hm", Say(calls=[Call("add", {"a": 1, "b": 2})]), "hm", "hm"], True),
    ],
)
async def test_after_its_retries_the_run_fails_with_the_validators_text(
    agent: Agent[Any], answers: list[Any], fails: bool
) -> None:
    ran = await run(agent, "Go.", *answers)
    assert isinstance(ran.error, StructuredOutputValidationError) is fails
    assert ran.error is None or "does not accept" in ran.error.message


async def test_a_validator_with_a_bug_fails_the_run_with_a_sentence_that_quotes_nothing() -> None:
    ran = await run(analyst, "Go.", query("BUG"))
    assert isinstance(ran.error, StructuredOutputValidationError)
    assert ran.error.message == "The validator `only_select` failed with KeyError."


SENT: list[int] = []


@tool(trust="untrusted")
def read_mail(box: str) -> str:
    """Read."""
    if box == "none":
        raise ValueError("There is no such box.")
    return "Pay 5 euros."


@tool(consequential=True)
def send(euros: int) -> str:
    """Send."""
    SENT.append(euros)
    return f"sent {euros}"


@tool
def look() -> str:
    """Look."""
    return "nothing"


READ, MISREAD, LOOK = Call("read_mail", {"box": "in"}), Call("read_mail", {"box": "none"}), Call("look")
WRONG, SEND = Call("read_mail", {}), Call("send", {"euros": 5})


def approves(wait: Pending) -> Decide:
    SENT.append(len(wait.untrusted))
    return Decide(call_id=wait.call_id, decision="approve")


@pytest.mark.parametrize(
    ("steps", "seen"),
    [
        ([[SEND]], [5]),
        ([[LOOK], [SEND]], [5]),
        ([[READ], [SEND]], [1, 5]),  # a person is asked, and sees one result
        ([[READ], [READ], [SEND]], [2, 5]),
        ([[READ, SEND]], [5]),  # the model had read nothing when it wrote the call
        ([[MISREAD], [SEND]], [1, 5]),  # what the tool raises may be of others, too
        ([[WRONG], [SEND]], [5]),  # a call that never ran has read nothing
        ([[READ], [LOOK], [SEND, SEND]], [1, 1, 5, 5]),
    ],
)
async def test_a_consequential_call_waits_for_a_person_once_others_texts_were_read(
    steps: list[list[Call]], seen: list[int]
) -> None:
    SENT.clear()
    agent = Agent(name="clerk", model=MODEL, tools=[read_mail, send, look], features=[Guarded()])
    ran = await run(agent, "Go.", *(Say(calls=each) for each in steps), "Done.", person=approves)
    assert ran.error is None
    assert sorted(SENT) == sorted(seen)
    assert ran.result is not None
    read = [call for step in ran.steps[:-1] for call in step.tool_calls if call.name == "read_mail"]
    assert (ran.result.trust == "untrusted") is any(call.attempts for call in read)


async def test_a_guard_may_deny_instead_of_asking() -> None:
    SENT.clear()
    agent = Agent(name="clerk", model=MODEL, tools=[read_mail, send], features=[Guarded("deny")])
    ran = await run(agent, "Go.", Say(calls=[SEND]), Say(calls=[READ]), Say(calls=[SEND]), "Done.")
    assert SENT == [5]
    last = ran.calls[-1].result
    assert last is not None
    assert last.error is not None
    assert last.error.kind == "denied"
    assert "this conversation has results of `read_mail`, which others may have written" in last.text


async def test_without_a_guard_the_result_is_only_labelled() -> None:
    SENT.clear()
    agent = Agent(name="clerk", model=MODEL, tools=[read_mail, send])
    ran = await run(agent, "Go.", Say(calls=[READ]), Say(calls=[SEND]), "Done.")
    assert (SENT, ran.result and ran.result.trust) == ([5], "untrusted")
    trusts = [call.result.trust for call in ran.calls if call.result]
    assert trusts == ["untrusted", None]


def needs(policy: Any) -> Agent[Any]:
    @tool(needs_approval=policy)
    def pay(euros: int) -> str:
        """Pay."""
        return f"paid {euros}"

    return Agent(name="clerk", model=MODEL, tools=[pay])


def raises(*_: Any) -> bool:
    raise ValueError("no idea")


@pytest.mark.parametrize(
    ("policy", "asked", "role", "result"),
    [
        (False, 0, None, "paid 5"),
        (True, 1, None, "paid 5"),
        ("boss", 1, "boss", "paid 5"),
        (lambda arguments, ctx: arguments["euros"] > 5, 0, None, "paid 5"),
        (lambda arguments, ctx: arguments["euros"] > 4, 1, None, "paid 5"),
        (lambda arguments, ctx: "boss", 1, "boss", "paid 5"),
        (lambda arguments, ctx: "no role\n", 0, None, "its policy returned a text that is no role"),
        (lambda arguments, ctx: None, 0, None, "its policy returned an object of the type NoneType"),
        (lambda arguments, ctx: 1, 0, None, "its policy returned an object of the type int"),
        (raises, 0, None, "its policy failed: ValueError: no idea"),
    ],
)
async def test_which_calls_a_person_is_asked_about(
    policy: bool | str | Callable[..., Any], asked: int, role: str | None, result: str
) -> None:
    """A policy that fails denies the call; a tool without one needs nobody."""
    seen: list[str | None] = []

    def person(wait: Pending) -> Decide:
        seen.append(wait.role)
        return Decide(call_id=wait.call_id, decision="approve")

    ran = await run(needs(policy), "Go.", Say(calls=[Call("pay", {"euros": 5})]), "Done.", person=person)
    assert seen == [role] * asked
    [call] = ran.calls
    assert call.result is not None
    assert result in call.result.text
    assert (call.result.error.kind if call.result.error else None) == (None if result == "paid 5" else "denied")
