"""What the agents of tests/live/test_agent_files.py name, which are files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mulligan import Agent, Guarded, McpServer, Skills, ToolContext, tool

RELEASE = Path("/nonexistent")
"""The file for which `wait` waits: a test sets it."""


@asynccontextmanager
async def resources() -> AsyncIterator[str]:
    """What `look_up` finds in its context."""
    yield "the shelf"


@tool
def look_up(order: int, ctx: ToolContext) -> str:
    """Look an order up."""
    return f"order {order} is on {ctx.resources}"


@tool(timeout=60, attempts=3)
async def wait(order: int) -> str:
    """Wait for a file."""
    while not RELEASE.exists():
        await asyncio.sleep(0.02)
    return f"order {order} was waited for"


@tool(timeout=60)
async def lost(order: int) -> str:
    """Hang until the worker is gone."""
    await asyncio.sleep(50)
    return f"order {order} is lost"


class Faulty(Guarded):
    """A feature with a bug."""

    @property
    def name(self) -> str:
        """That of a feature of Mulligan's."""
        return "guarded"

    def faults(self, agent: Agent) -> dict[str, bool]:
        """Fail."""
        raise ZeroDivisionError(f"division of {agent.name} by zero")


faulty = Faulty()
stock = McpServer("stock", command=["stock-server"])
house_skills = Skills(Path(__file__).parent / "step_cost_skills")
clerk = Agent(name="clerk", model="openai:nobody", instructions="You are declared in Python.", tools=[look_up])
