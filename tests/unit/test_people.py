"""People, without a server: the page's example, and a person whose word is refused, or who says nothing."""

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


async def test_the_page() -> None:
    """docs/people.md: its agent's test passes, and its client can be read."""
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


async def paying(person: Any) -> AgentRun:
    return await run_agent(clerk, "Pay.", model=Model(Say(calls=[Call("pay", {"euros": 7})]), "Done."), person=person)


async def test_an_edit() -> None:
    run = await paying(edits)
    assert run.calls[0].result is not None
    assert run.calls[0].result.text == "paid 5"
    assert run.calls[0].decision is not None
    assert run.calls[0].decision.before == {"euros": 7}


async def test_nobody_says_anything() -> None:
    """Its time goes by at once: there is no clock to wait for."""
    run = await paying(says_nothing)
    assert run.calls[0].result is not None
    assert run.calls[0].result.text == "`pay` was not run: nobody approved of it in time."


@pytest.mark.parametrize(("person", "says"), [(asks, "euros"), (mistakes, 'use the update "decide"')])
async def test_what_a_person_says_is_refused(person: Any, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        await paying(person)
