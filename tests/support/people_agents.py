"""Agents whose tools wait for approval, ask people, or take a while."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from pydantic import BaseModel, Field, field_validator

from mulligan import Agent, Call, Say, Script, ToolCall, ToolContext, tool
from mulligan.tools import ask_person
from tests.support.shop_agents import RAN


class Amount(BaseModel):
    euros: Annotated[float, Field(gt=0, le=100)]

    @field_validator("euros")
    @classmethod
    def whole_cents(cls, euros: float) -> float:
        """A rule that a JSON schema cannot express."""
        if euros != round(euros, 2):
            raise ValueError("there are no parts of a cent")
        return euros


@tool(needs_approval=True)
def refund(order: int, amount: Amount, ctx: ToolContext) -> str:
    """Give money back. Order 8 takes a second."""
    time.sleep(order == 8)
    RAN[ctx.workflow_id].append(("refund", {"order": order, "euros": amount.euros}))
    return f"refunded {amount.euros:g} for order {order}"


async def is_large(arguments: dict[str, Any], ctx: ToolContext) -> bool:
    if arguments["percent"] == 99:
        raise RuntimeError("cannot tell")
    return int(arguments["percent"]) > int(ctx.metadata.get("alone_up_to", 10))


@tool(needs_approval=is_large)
def discount(percent: int, ctx: ToolContext) -> str:
    """Give a discount."""
    RAN[ctx.workflow_id].append(("discount", {"percent": percent}))
    return f"{percent} % off"


@tool(needs_approval=True, approval_timeout=1)
def hasty(ctx: ToolContext) -> str:
    """Wait for a second only."""
    RAN[ctx.workflow_id].append(("hasty", {}))
    return "done"


@tool(needs_approval=True, approval_reminder=1)
def sign(ctx: ToolContext) -> str:
    """Sign. People are reminded after 1, 3, 7 … seconds."""
    RAN[ctx.workflow_id].append(("sign", {}))
    return "signed"


@tool(asks_person=True, approval_timeout=1)
def ask_quickly(question: str, choices: list[str]) -> str:  # type: ignore[empty-body]
    """Ask, for a second."""


NAPPING: set[object] = set()
"""The naps that are taken now."""


@tool(timeout=300)
async def nap(seconds: float, ctx: ToolContext) -> str:
    """Take a nap."""
    RAN[ctx.workflow_id].append(("nap", {"seconds": seconds}))
    this, until = object(), time.monotonic() + seconds
    NAPPING.add(this)
    try:
        while time.monotonic() < until and this in NAPPING:
            await asyncio.sleep(0.02)
    finally:
        NAPPING.discard(this)
    return "slept"


async def wake() -> None:
    """Wait until a nap has begun, and end it: what a test does during a nap takes as long as the machine needs."""
    while not NAPPING:
        await asyncio.sleep(0.02)
    NAPPING.clear()


def guard(call: ToolCall, ctx: ToolContext) -> str | None:
    return "order 13 is not touched." if '"order": 13' in call.arguments else None


desk = Agent(
    name="desk",
    model="openai-chat:none",
    tools=[refund, discount, hasty, sign, ask_person, ask_quickly, nap],
    max_steps=50,
    guard=guard,
)

front = Agent(name="front", model="openai-chat:front", tools=[desk.as_tool(description="Handles orders.")])
"""What its sub-agent asks people is asked in its own conversation."""


@tool
async def look(ctx: ToolContext) -> str:
    """Look around."""
    return "nothing new"


listening = Script("listening", [Say(calls=[Call("look")])] * 30 + [Say("ok")])
"""Works for a while, then answers: the run ends unless a message arrives at that moment."""
listener = Agent(name="listener", model="scripted:listening", tools=[look], max_steps=100)
