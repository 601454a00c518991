"""Agents whose model calls cost 1 USD each, by the prices of tests/system/test_tenant_budgets.py."""

from __future__ import annotations

from mulligan import Agent, Background, Compaction, ProviderTool, tool


@tool
def look() -> str:
    """Look."""
    return "seen"


@tool
def read() -> str:
    """Read a page."""
    return "A line of the page. " * 320


spender = Agent(name="spender", model="openai-chat:paid", tools=[look])
unpriced = Agent(name="unpriced", model="openai-chat:unpriced")
reader = Agent(name="summing_reader", model="openai-chat:paid", tools=[read], features=[Compaction(at=1_000)])
boss = Agent(name="boss", model="openai-chat:paid-boss", tools=[spender.as_tool(description="Spend.")])
hasty = Agent(name="hasty", model="openai-chat:paid", model_timeout=2)
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
searcher = Agent(name="searcher", model="anthropic:paid", tools=[ProviderTool("anthropic", SEARCH)])
patient = Agent(name="patient", model="openai:paid", features=[Background()])
