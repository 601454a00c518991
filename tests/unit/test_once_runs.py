"""`once` in whole runs: which equal calls run, what the model is told of the others, and which key a repeat has."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan import Agent, Call, Decide, InvalidToolInputError, Pending, Say, ToolContext, ToolError, tool
from mulligan.activities.tool_running.thread_bounds import TookTooLong
from mulligan.testing import AgentRun, ScriptedModel, run_agent

SUCCEEDED = "You made this call of `pay` before, with the same arguments, and it succeeded. It was not run again."


class Ledger:
    """What tools have executed: the arguments, the key, and what happens, by the outcomes that a test gives."""

    def __init__(self, *outcomes: str) -> None:
        self.executed: list[tuple[Any, str]] = []
        self._outcomes = [*outcomes]

    @property
    def arguments(self) -> list[Any]:
        return [each for each, _ in self.executed]

    def execute(self, argument: Any, ctx: ToolContext) -> str:
        self.executed.append((argument, ctx.idempotency_key))
        outcome = self._outcomes.pop(0) if self._outcomes else "ok"
        if outcome == "error":
            raise ToolError("The bank refuses.")
        if outcome == "lost":
            raise TookTooLong(1)
        return "é" * 3_000 if outcome == "long" else f"receipt {len(self.executed)}"

    def tools(self) -> list[Any]:
        @tool(once=True)
        def pay(amount: float, ctx: ToolContext, to: str = "shop") -> str:
            """Pay."""
            return self.execute(amount, ctx)

        @tool(once="step")
        def tick(number: int, ctx: ToolContext) -> str:
            """Tick."""
            return self.execute(number, ctx)

        @tool(once=True, needs_approval=True)
        def refund(order: int, ctx: ToolContext) -> str:
            """Refund."""
            return self.execute(order, ctx)

        @tool(once=True, handle_errors=False)
        def strict(number: int, ctx: ToolContext) -> str:
            """Do it."""
            return self.execute(number, ctx)

        @tool(once=True, handle_errors=lambda error: f"{type(error).__name__} {error.kind} {error.raw_arguments}")
        def told(number: int, ctx: ToolContext) -> str:
            """Do it."""
            return self.execute(number, ctx)

        @tool
        def look(number: int, ctx: ToolContext) -> str:
            """Look."""
            return self.execute(number, ctx)

        return [pay, tick, refund, strict, told, look]


def says(name: str, *arguments: Any) -> Say:
    """A step of calls with these arguments, whose ids are a, b, c …"""
    return Say(calls=[Call(name, each) for each in arguments])


def kinds(run: AgentRun[Any]) -> list[str | None]:
    return [call.result.error.kind if call.result and call.result.error else None for call in run.calls]


async def run(ledger: Ledger, *steps: Say, person: Any = None, **given: Any) -> AgentRun[Any]:
    agent = Agent(name="writer", model="openai:nobody", tools=ledger.tools(), max_repeats=None)
    model = ScriptedModel(*steps, "Done.", is_strict=False)
    return await run_agent(agent, "Go.", model=model, person=person, **given)


FIVE, SIX = {"amount": 5}, {"amount": 6}


async def test_equal_calls_of_a_step_and_of_later_steps_run_once() -> None:
    """Equal are the valid arguments, however they are written. The model reads the result of the first."""
    ledger = Ledger()
    same = (FIVE, '{"to": "shop", "amount": 5.0}', {"amount": "5"})
    ran = await run(ledger, says("pay", *same, SIX), says("pay", "{'amount': 5,}"))
    assert kinds(ran) == [None, "duplicate_call", "duplicate_call", None, "duplicate_call"]
    assert ledger.arguments == [5.0, 6.0]
    assert [call.attempts for call in ran.calls] == [1, 0, 0, 1, 0]
    assert ran.calls[1].result is not None
    assert ran.calls[1].result.text == f"{SUCCEEDED}\nIts result was:\nreceipt 1"
    assert ran.result is not None
    assert (ran.result.recovered_failures, ran.result.tool_calls) == (3, 5)


async def test_equal_calls_of_other_tools_run() -> None:
    ledger = Ledger()
    ran = await run(ledger, says("look", {"number": 1}, {"number": 1}), says("tick", {"number": 1}))
    assert (kinds(ran), ledger.arguments) == ([None] * 3, [1, 1, 1])


async def test_a_long_result_is_told_by_its_beginning() -> None:
    ran = await run(Ledger("long"), says("pay", FIVE, FIVE))
    assert ran.calls[1].result is not None
    assert ran.calls[1].result.text == f"{SUCCEEDED}\nIts result begins with:\n{'é' * 1_024}"


async def test_a_failed_call_may_be_repeated_in_its_step_and_later() -> None:
    """Each equal call waits for the one before it, and has a key of its own."""
    ledger = Ledger("error", "error")
    ran = await run(ledger, says("pay", FIVE, FIVE, FIVE, FIVE), says("pay", FIVE))
    assert kinds(ran) == ["tool_error", "tool_error", None, "duplicate_call", "duplicate_call"]
    assert len({key for _, key in ledger.executed}) == 3


async def test_the_repeat_of_a_call_that_may_have_done_its_work_has_its_key() -> None:
    """Also where the repeat fails and is repeated; another call has another key."""
    ledger = Ledger("lost", "error", "ok", "ok")
    ran = await run(ledger, says("pay", FIVE, FIVE), says("pay", FIVE), says("pay", SIX))
    assert kinds(ran) == ["tool_timeout", "tool_error", None, None]
    first, second, third, other = [key for _, key in ledger.executed]
    assert first == second == third != other


async def test_a_lost_call_whose_repeat_succeeds_is_not_run_again() -> None:
    ledger = Ledger("lost")
    ran = await run(ledger, says("pay", FIVE), says("pay", FIVE), says("pay", FIVE))
    assert kinds(ran) == ["tool_timeout", None, "duplicate_call"]
    assert len({key for _, key in ledger.executed}) == 1


async def test_once_of_a_step_compares_the_calls_of_one_step() -> None:
    one = {"number": 1}
    ran = await run(Ledger(), says("tick", one, one), says("tick", one))
    assert kinds(ran) == [None, "duplicate_call", None]


@pytest.mark.parametrize(
    ("name", "arguments", "given"),
    [("strict", {"number": 1}, {}), ("pay", FIVE, {"on_invalid_tool_input": "throw"})],
)
async def test_a_policy_may_fail_the_run_for_an_excluded_call(
    name: str, arguments: dict[str, Any], given: dict[str, Any]
) -> None:
    ledger = Ledger()
    ran = await run(ledger, says(name, arguments, arguments), **given)
    assert isinstance(ran.error, InvalidToolInputError)
    assert (ran.error.kind, len(ledger.executed)) == ("duplicate_call", 1)
    assert ran.error.call_id == ran.calls[1].id


async def test_a_function_as_policy_gets_the_typed_error() -> None:
    one = {"number": 1}
    ran = await run(Ledger(), says("told", one, one))
    assert ran.calls[1].result is not None
    assert ran.calls[1].result.text == 'InvalidToolInputError duplicate_call {"number": 1}'
    ran = await run(Ledger(), says("told", one, one), on_invalid_tool_input="feedback")
    assert ran.calls[1].result is not None
    assert ran.calls[1].result.text.startswith("You made this call of `told` before")


class Person:
    """Decides on each call that waits in its turn, by the decisions that a test gives; then approves."""

    def __init__(self, *decisions: Any) -> None:
        self.asked: list[int] = []
        self._decisions = [*decisions]

    def __call__(self, wait: Pending) -> Decide | None:
        self.asked.append(wait.arguments["order"])
        decision = self._decisions.pop(0) if self._decisions else "approve"
        if decision is None:
            return None
        if isinstance(decision, int):
            return Decide(call_id=wait.call_id, decision="approve", arguments={"order": decision})
        return Decide(call_id=wait.call_id, decision=decision)


def orders(*numbers: int) -> Say:
    return says("refund", *({"order": each} for each in numbers))


async def test_a_person_is_asked_once_for_equal_calls_that_are_approved() -> None:
    ledger, person = Ledger(), Person()
    ran = await run(ledger, orders(7, 7, 8), orders(7), person=person)
    assert kinds(ran) == [None, "duplicate_call", None, "duplicate_call"]
    assert (person.asked, ledger.arguments) == ([7, 8], [7, 8])
    assert [call.decision is not None for call in ran.calls] == [True, False, True, False]
    assert sum(event.type == "waiting" for event in ran.events) == 2


async def test_a_denial_holds_for_equal_calls_of_the_step_but_not_for_later_ones() -> None:
    person = Person("deny")
    ran = await run(Ledger(), orders(7, 7, 7), orders(7), person=person)
    assert kinds(ran) == ["denied", "duplicate_call", "duplicate_call", None]
    assert person.asked == [7, 7]
    assert ran.calls[1].result is not None
    assert ran.calls[1].result.text == (
        "You made this call of `refund` more than once in one step. The first was not run, because a person denied it, so "
        "this one was not run either."
    )


async def test_an_approved_call_that_fails_is_asked_about_again_for_its_repeat() -> None:
    person = Person()
    ran = await run(Ledger("error"), orders(7, 7), person=person)
    assert (kinds(ran), person.asked) == (["tool_error", None], [7, 7])


async def test_edited_arguments_count_as_those_that_ran_and_the_models_as_well() -> None:
    """Nor does an edit to what has run make it run again."""
    ledger, person = Ledger(), Person(8, "approve", 7)
    ran = await run(ledger, orders(7, 8), orders(7, 8, 9), person=person)
    assert kinds(ran) == [None, *["duplicate_call"] * 4]
    assert (person.asked, ledger.arguments) == ([7, 8, 9], [8])


async def test_an_edited_call_whose_work_is_uncertain_has_a_key_of_its_own() -> None:
    """The model's own arguments are those of other work."""
    ledger, person = Ledger("lost", "ok"), Person(8, "approve")
    ran = await run(ledger, orders(7), orders(7), person=person)
    assert (kinds(ran), ledger.arguments) == (["tool_timeout", None], [8, 7])
    assert len({key for _, key in ledger.executed}) == 2
    ledger, person = Ledger("lost", "ok"), Person(8, "approve")
    ran = await run(ledger, orders(7), orders(8), person=person)
    assert (kinds(ran), ledger.arguments) == (["tool_timeout", None], [8, 8])
    assert len({key for _, key in ledger.executed}) == 1


async def test_a_call_that_was_edited_to_be_equal_waits_for_the_other_and_runs_if_that_is_denied() -> None:
    ledger, person = Ledger(), Person("deny", 7)
    ran = await run(ledger, orders(7, 8), person=person)
    assert (kinds(ran), ledger.arguments) == (["denied", None], [7])


async def test_calls_that_are_wrong_are_not_compared() -> None:
    ran = await run(Ledger(), says("pay", {}, {}), says("pay", FIVE))
    assert kinds(ran) == ["invalid_arguments", "invalid_arguments", None]
