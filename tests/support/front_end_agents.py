"""The agent that the clients of docs/clients.md talk to. It calls a tool, then answers; its answers go by their number."""

from __future__ import annotations

from mulligan import Agent, Call, Say, Script, tool

TOKEN = "the-token-of-ada"
"""As in docs/clients.md."""
ANSWER = "Order 7 is on its way."


@tool
def find_order(number: int) -> str:
    """Find an order by its number."""
    return f"order {number}: sent on Monday"


script = Script("front-end", [Say("Let me look.", [Call("find_order", {"number": 7})]), Say(ANSWER)])
support = Agent(name="support", model="scripted:front-end", instructions="You help customers.", tools=[find_order])
titles = Agent(name="titles", model="scripted:titles", instructions="Write a title of three words.")
title_script = Script("titles", [Say("Order on its way")])


@tool(needs_approval=True)
def refund_order(number: int) -> str:
    """Give the money for an order back."""
    return f"order {number}: refunded"


refund_script = Script("refund", [Say("One moment.", [Call("refund_order", {"number": 7})]), Say("Refunded.")])
refunds = Agent(name="refunds", model="scripted:refund", tools=[refund_order])
