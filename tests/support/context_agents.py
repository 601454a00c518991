"""Agents of whose conversations less is sent than they have, and an agent that waits for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan import Agent, ClearToolResults, Compaction, tool
from tests.support.compaction_agents import LIMIT, read_page
from tests.support.tool_search_agents import get_trains, get_weather

CLEARING = ClearToolResults(at=1_000, keep_steps=1)


@tool(needs_approval=True)
def close_book() -> str:
    """Close the book."""
    return "Closed."


cleared = Agent(name="cleared_reader", model="openai-chat:nobody", tools=[read_page], features=[CLEARING], max_steps=50)
both = Agent(
    name="forgetful_reader",
    model="openai-chat:nobody",
    tools=[read_page],
    features=[Compaction(at=LIMIT), CLEARING],
    max_steps=100,
)
finder = Agent(name="finder", model="openai-chat:nobody", tools=[read_page, get_weather, get_trains])


def closer(instructions: str, settings: Mapping[str, Any]) -> Agent:
    """An agent as one version of a program declares it."""
    return Agent(
        name="closer",
        model="openai-chat:nobody",
        instructions=instructions,
        tools=[close_book],
        model_settings=settings,
    )
