"""One of two modules for workers that share a task queue and serve different agents. The other is east_agents.py."""

from __future__ import annotations

from mulligan import Agent, Call, Say, Script, last_result, tool


@tool
def stamp(letter: str) -> str:
    """Stamp a letter."""
    return f"{letter} is stamped"


clerk = Agent(name="west_clerk", model="scripted:west_clerk", tools=[stamp])
clerk_script = Script(
    "west_clerk", [Say(calls=[Call("stamp", {"letter": "A"})]), lambda messages: Say(last_result(messages))]
)
