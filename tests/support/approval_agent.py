"""An agent that needs people often: two calls that wait for approval, and a question, over a few steps."""

from __future__ import annotations

import asyncio

from mulligan import Agent, Call, Say, Script, tool
from mulligan.tools import ask_person


@tool(needs_approval=True, attempts=3)
async def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


@tool(attempts=3)
async def look_up(order: int) -> str:
    """Look an order up, for a moment: long enough that a query can arrive before its result."""
    await asyncio.sleep(0.05)
    return f"order {order} is on its way"


ASKS = Say(
    calls=[Call("pay", {"euros": 7}), Call("ask_person", {"question": "Which colour?"}), Call("look_up", {"order": 7})]
)
LOOKS = Say(calls=[Call("look_up", {"order": 8})])
PAYS = Say(calls=[Call("pay", {"euros": 8}), Call("look_up", {"order": 9})])
script = Script("office", [LOOKS, ASKS, LOOKS, PAYS, *[Say("done")] * 20])
"""Each message that arrives after the last call takes one more step."""
office = Agent(name="office", model="scripted:office", tools=[pay, look_up, ask_person], max_steps=50)
