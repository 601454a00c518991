"""An agent with tools that hang until their process ends, and one that answers at once. Only worker processes load this file."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial
from pathlib import Path

from mulligan import Agent, ToolContext, tool
from mulligan.activities.tool_running.tool_runtime import ToolRuntime
from mulligan.worker import wiring

if "HANGING_THREADS" in os.environ:
    # A worker ends with so many hung threads, instead of the 128 of users.
    vars(wiring)["ToolRuntime"] = partial(ToolRuntime, threads=int(os.environ["HANGING_THREADS"]))
NEVER = threading.Event()


@tool(timeout=0.5)
def crawl(number: int) -> str:
    """Hang."""
    NEVER.wait()
    return f"page {number}"


@tool(timeout=0.5)
def print_page(number: int) -> str:
    """Hang."""
    NEVER.wait()
    return f"page {number}"


@tool
def now() -> str:
    """Answer."""
    return "noon"


@tool
async def wait_for_file(ctx: ToolContext) -> str:
    """Answer when the file of the run's metadata exists."""
    file = Path(ctx.metadata["file"])
    while not file.exists():
        await asyncio.sleep(0.1)
    return "there"


hanging = Agent(
    name="hanging",
    model="openai-chat:x",
    instructions="Call tools.",
    tools=[crawl, print_page, now, wait_for_file],
)
