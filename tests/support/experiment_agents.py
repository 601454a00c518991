"""An agent that books, and functions that score its runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from mulligan import Agent, ToolContext, score, tool


@tool
def book(place: int, ctx: ToolContext) -> str:
    """Book a place."""
    with Path(ctx.metadata["bookings"]).open("a") as file:
        file.write(f"{ctx.workflow_id} {place}\n")
    return f"Place {place} is booked."


booker = Agent(name="booker", model="openai-chat:booker", instructions="You book places.", tools=[book])
talker = Agent(name="talker", model="openai-chat:talker")


@score
def is_right(case: Any, result: Any, steps: Any) -> bool:
    """Whether it answered as expected."""
    return bool(result.output == case.expected)


@score
async def marks(case: Any, result: Any, steps: Any) -> dict[str, float]:
    """Two numbers."""
    await asyncio.sleep(0)
    return {"right": float(result.output == case.expected), "calls": float(result.tool_calls)}


@score
def breaks(case: Any, result: Any, steps: Any) -> float:
    """Raise."""
    raise LookupError("no such word")


@score
def says_text(case: Any, result: Any, steps: Any) -> Any:
    """Return what is no number."""
    return "good"
