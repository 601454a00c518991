"""Agents whose runs wait, for `benchmarks/waiting.py`; their model is scripted."""

from __future__ import annotations

from benchmarks.passage import A_DAY
from mulligan import Agent, Call, Say, Script, tool
from mulligan.tools import wait_until


@tool(needs_approval=True)
async def refund(order_id: int) -> str:
    """Refund an order."""
    return f"Order {order_id} is refunded."


@tool(deferred=True)
async def order_report(year: int) -> str:
    """Order the report of a year."""
    return f"the report of {year}"


person = Agent(name="person", model="scripted:person", tools=[refund])
callback = Agent(name="callback", model="scripted:callback", tools=[order_report])
timer = Agent(name="timer", model="scripted:timer", tools=[wait_until])
ask_person = Script("person", [Say(calls=[Call("refund", {"order_id": 7}, id="wait")]), Say("Done.")])
ask_service = Script("callback", [Say(calls=[Call("order_report", {"year": 2026}, id="wait")]), Say("Done.")])
ask_clock = Script("timer", [Say(calls=[Call("wait_until", {"seconds": A_DAY}, id="wait")]), Say("Done.")])
