"""An agent whose tools write each of their effects to a file that outlives every process."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from mulligan import Agent, Compaction, McpServer, RunInput, ToolContext, ToolError, tool
from tests.chaos import named_points  # noqa: F401 - it kills this process at points, if it is asked to
from tests.chaos.ledger import write


def record(event: str, name: str, ctx: ToolContext) -> None:
    """Write an effect of a tool call."""
    write(event, name, run=ctx.workflow_id, call=ctx.call_id, key=ctx.idempotency_key, attempt=ctx.attempt)


@tool
async def pay(milliseconds: int, ctx: ToolContext) -> str:
    """An effect that must happen at most once."""
    record("start", "pay", ctx)
    await asyncio.sleep(milliseconds / 1000)
    record("end", "pay", ctx)
    return "paid"


@tool(attempts=3)
def fetch(milliseconds: int, ctx: ToolContext) -> str:
    """An effect that may be repeated twice."""
    record("start", "fetch", ctx)
    time.sleep(milliseconds / 1000)
    record("end", "fetch", ctx)
    return "fetched"


@tool(attempts=2, retry_on=(OSError,))
async def flaky(milliseconds: int, ctx: ToolContext) -> str:
    """Fails at its first attempt."""
    record("start", "flaky", ctx)
    await asyncio.sleep(milliseconds / 1000)
    record("end", "flaky", ctx)
    if ctx.attempt == 1:
        raise OSError("not yet")
    return "done"


@tool
async def refuse(milliseconds: int, ctx: ToolContext) -> str:
    """Returns an error to the model."""
    record("start", "refuse", ctx)
    await asyncio.sleep(milliseconds / 1000)
    record("end", "refuse", ctx)
    raise ToolError("The shop is closed.")


@tool(local=True)
async def look(milliseconds: int, ctx: ToolContext) -> str:
    """A local tool, which may run again."""
    record("start", "look", ctx)
    await asyncio.sleep(milliseconds / 1000)
    record("end", "look", ctx)
    return "seen"


@tool(needs_approval=True)
async def refund(milliseconds: int, ctx: ToolContext) -> str:
    """An effect that must happen at most once, after a person has approved it."""
    record("start", "refund", ctx)
    await asyncio.sleep(milliseconds / 1000)
    record("end", "refund", ctx)
    return "refunded"


def named(run_input: RunInput) -> str:
    """Instructions with the run's prompt, which is its name: a compaction removes it from the conversation."""
    return f"This is {run_input.prompt}."


ledger = Agent(
    name="ledger",
    model="openai-chat:chaos",
    instructions=named,
    tools=[pay, fetch, flaky, refuse, look],
    max_steps=100,
)
clerk = Agent(name="clerk", model="openai-chat:chaos", instructions=named, tools=[pay, fetch], max_steps=100)
everything = Agent(
    name="everything",
    model="openai-chat:chaos",
    instructions=named,
    tools=[pay, fetch, flaky, refuse, look, refund, clerk.as_tool(description="Helps.")],
    mcp=[
        McpServer(
            "lent", command=[sys.executable, str(Path(__file__).parents[1] / "support/mcp_server.py")], include=["echo"]
        )
    ],
    features=[Compaction(at=1000, model="scripted:summary")],
    max_steps=100,
)
"""Beside the tools: approvals, a sub-agent, an MCP server and compaction."""
