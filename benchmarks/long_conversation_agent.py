"""The agent of benchmarks/long_conversation.py, as openai-agents declares it, and adopted by Mulligan."""

from __future__ import annotations

from dataclasses import replace

from agents import Agent, function_tool

from benchmarks.passage import five_passages
from mulligan import adopt


@function_tool  # type: ignore[untyped-decorator]  # openai-agents is not in this environment
async def look(number: int) -> str:
    """Give 5 KB."""
    return five_passages(number)


bench = replace(adopt(Agent(name="bench", model="bench", tools=[look])), max_steps=1_000)
