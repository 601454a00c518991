"""An agent whose tools start jobs elsewhere. `STARTED` has the token and the return value of each call, by run and call."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from pydantic import BaseModel

from mulligan import Agent, ToolContext, tool
from mulligan.tools import ask_person, wait_until

STARTED: dict[str, dict[str, str]] = defaultdict(dict)
"""The callback tokens by workflow id and call id."""
BODIES: dict[str, list[str]] = defaultdict(list)
"""The ids of the calls whose body ran, by workflow id."""
CANCELLED: dict[str, list[Any]] = defaultdict(list)
"""What `on_cancel` was called with, by workflow id."""
RELEASE: dict[str, asyncio.Event] = defaultdict(asyncio.Event)


class Report(BaseModel):
    rows: int
    note: str = ""


def _begin(ctx: ToolContext) -> None:
    assert ctx.callback_token is not None
    STARTED[ctx.workflow_id][ctx.call_id] = ctx.callback_token
    BODIES[ctx.workflow_id].append(ctx.call_id)


async def end_report(started: Any, ctx: ToolContext) -> None:
    CANCELLED[ctx.workflow_id].append((ctx.call_id, started))


@tool(deferred=True, result_type=Report, on_cancel=end_report)
async def order_report(name: str, ctx: ToolContext) -> dict[str, str]:
    """Order a report."""
    _begin(ctx)
    return {"job": f"job-{name}"}


@tool(deferred=True, deferred_timeout=1)
async def quick_job(ctx: ToolContext) -> str:
    """Start a job that must be done soon."""
    _begin(ctx)
    return "started"


@tool(deferred=True)
async def slow_start(ctx: ToolContext, fails: bool = False) -> str:
    """Start a job, which takes a while."""
    _begin(ctx)
    for _ in range(1_500):
        if ctx.workflow_id in RELEASE or ctx.workflow_id.startswith("deferred-"):
            break
        await asyncio.sleep(0.02)
    if fails:
        raise RuntimeError("the connection broke")
    return "started"


@tool(deferred=True, needs_approval=True)
async def careful_job(ctx: ToolContext) -> str:
    """Start a job that a person must approve of."""
    _begin(ctx)
    return "started"


@tool(attempts=3)
async def note(ctx: ToolContext) -> str:
    """Do something at once."""
    return "noted"


clerk = Agent(
    name="job_clerk",
    model="openai-chat:nobody",
    tools=[order_report, quick_job, slow_start, careful_job, note, ask_person, wait_until],
    max_steps=50,
)
