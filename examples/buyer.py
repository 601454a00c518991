"""`buyer`: an agent that asks a person, and may not spend much without one.

Its model is scripted, so it runs without a key.

    uv run mulligan worker --load examples.buyer
    uv run mulligan start buyer "We need ten lamps." --id lamps
    uv run mulligan pending lamps
    uv run mulligan answer lamps "Green."
    uv run mulligan approve lamps
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from mulligan import Agent, Call, Message, Say, Script, ToolContext, last_result, tool
from mulligan.tools import ask_person

ALONE_UP_TO = 100
"""Euros that the agent may spend by itself."""


def is_expensive(arguments: dict[str, Any], ctx: ToolContext) -> bool:
    """Whether a person must approve the purchase."""
    return float(arguments["euros"]) > (5 * ALONE_UP_TO if ctx.tenant == "head-office" else ALONE_UP_TO)


@tool(needs_approval=is_expensive, approval_timeout=7 * 24 * 3600, once=True)
def buy(what: str, euros: Annotated[float, Field(gt=0)]) -> str:
    """Buy something.

    Args:
        what: What is bought, and how many of it.
        euros: What it may cost in all.
    """
    return f"Ordered: {what}, for {euros:g} euros."


buyer = Agent(
    name="buyer",
    model="scripted:buyer",
    instructions="You buy what an office needs. Ask where you do not know what is wanted.",
    tools=[ask_person, buy],
)


def _buys(messages: Sequence[Message]) -> Say:
    colour = last_result(messages).strip(".").lower()
    return Say(calls=[Call("buy", {"what": f"10 lamps, {colour}", "euros": 240})])


def _tells(messages: Sequence[Message]) -> Say:
    return Say(last_result(messages))


script = Script("buyer", [Say(calls=[Call("ask_person", {"question": "Which colour?"})]), _buys, _tells])
