"""The agent that the example of the OpenAPI document starts, for tests of that document."""

from __future__ import annotations

from mulligan import Agent, Call, Say, Script, tool


@tool(needs_approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"order {order} is paid back"


support = Agent(name="support", model="scripted:support", tools=[refund])
answers = Script("support", [Say(calls=[Call("refund", {"order": 7})]), Say("It is paid back.")])
