"""Agents that hand conversations to each other, for tests on a real server."""

from __future__ import annotations

from mulligan import Agent, tool


@tool
def look_up(order: int) -> str:
    """Look an order up."""
    return f"order {order}: 9 EUR"


@tool(needs_approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"order {order} is refunded"


desk = Agent(
    name="desk",
    description="It refunds.",
    model="openai:nobody",
    instructions="You refund.",
    tools=[refund],
    handoffs=["reception"],
    max_steps=1,
)
reception = Agent(
    name="reception",
    model="openai:nobody",
    instructions="You sort.",
    tools=[look_up, refund],
    handoffs=[desk],
    max_steps=90,
)
