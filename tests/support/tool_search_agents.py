"""An agent whose tools are found on demand, for tests on a real server."""

from __future__ import annotations

from mulligan import Agent, tool


@tool(on_demand=True)
def get_weather(city: str) -> str:
    """Read the weather of a city."""
    return f"Rain in {city}."


@tool(on_demand=True)
def get_trains(station: str) -> str:
    """Read when the next trains leave a station."""
    return f"{station}: 10:05."


packer = Agent(name="packer", model="openai-chat:packer")
leader = Agent(
    name="leader",
    model="openai:m",
    tools=[get_weather, packer.as_tool(description="Pack a suitcase for a journey.", on_demand=True)],
)
guide = Agent(name="guide", model="openai:m", tools=[get_weather, get_trains])
