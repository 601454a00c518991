"""People, without a server: the examples of docs/people.md, edits, timeouts, and decisions that are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mulligan import Agent, Answer, Call, Decide, Pending, Say, tool
from mulligan.testing import AgentRun, Model, run_agent
from mulligan.tools import ask_person

PAGE = (Path(__file__).parent.parent.parent / "docs/people.md").read_text()
AGENT, TEST, CLIENT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@tool(needs_approval=True, approval_timeout=60)
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


clerk = Agent(name="clerk", model="openai:gpt-5-mini", tools=[pay, ask_person])


async def test_the_examples_of_the_people_page_pass() -> None:
    """docs/people.md: the test of its agent passes, and its client compiles."""
    page: dict[str, Any] = {"__name__": "page"}
    exec(compile(AGENT + TEST, "docs/people.md", "exec", dont_inherit=True), page)
    await page["test_ada_is_asked"]()
    compile(CLIENT, "docs/people.md", "exec", dont_inherit=True)


def edits(wait: Pending) -> Decide:
    return Decide(call_id=wait.call_id, decision="approve", arguments={"euros": 5})


async def asks(wait: Pending) -> Decide:
    return Decide(call_id=wait.call_id, decision="approve", arguments={"euros": "many"})


def mistakes(wait: Pending) -> Answer:
    return Answer(call_id=wait.call_id, text="yes")


def says_nothing(wait: Pending) -> None:
    return None


async def run_payer(person: Any) -> AgentRun:
    return await run_agent(clerk, "Pay.", model=Model(Say(calls=[Call("pay", {"euros": 7})]), "Done."), person=person)


async def test_an_edited_call_runs_with_the_new_arguments() -> None:
    run = await run_payer(edits)
    assert run.calls[0].result is not None
    assert run.calls[0].result.text == "paid 5"
    assert run.calls[0].decision is not None
    assert run.calls[0].decision.before == {"euros": 7}


async def test_without_a_decision_the_timeout_passes_at_once() -> None:
    """There is no server, so no clock to wait for."""
    run = await run_payer(says_nothing)
    assert run.calls[0].result is not None
    assert run.calls[0].result.text == "`pay` was not run: nobody approved of it in time."


@pytest.mark.parametrize(("person", "says"), [(asks, "euros"), (mistakes, 'use the update "decide"')])
async def test_an_invalid_decision_fails_the_test(person: Any, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        await run_payer(person)
