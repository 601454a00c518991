"""Agents whose model calls cost 1 USD each, by the prices of tests/system/test_tenant_budgets.py."""

from __future__ import annotations

from mulligan import Agent, tool


@tool
def look() -> str:
    """Look."""
    return "seen"


spender = Agent(name="spender", model="openai-chat:paid", tools=[look])
unpriced = Agent(name="unpriced", model="openai-chat:unpriced")
boss = Agent(name="boss", model="openai-chat:paid-boss", tools=[spender.as_tool(description="Spend.")])
