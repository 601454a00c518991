"""An agent whose tool says something else each time, and only when it may: what a reset of a run makes go wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from threading import Event

from temporalio import workflow

from mulligan import Agent, DurableAgent, ToolContext, tool

RAN: Counter[tuple[str, int]] = Counter()
"""How often the tool was begun, by workflow id and argument."""
GATES: dict[tuple[str, int, int], Event] = {}
"""What an execution waits for, if anything: by workflow id, argument and how often it was begun, from 1."""


@tool
async def look(ctx: ToolContext, n: int = 0) -> str:
    """Look at something that changes."""
    RAN[ctx.workflow_id, n] += 1
    times = RAN[ctx.workflow_id, n]
    gate = GATES.get((ctx.workflow_id, n, times))
    while gate is not None and not gate.is_set():
        await asyncio.sleep(0.02)
    return f"Look {times} at {n}: " + "é" * 200


@tool(task_queue="a-queue-that-no-worker-serves", queue_timeout=0.2)
async def deserted() -> str:
    """A tool whose worker is gone: what the model is told of it, no worker has made."""
    return ""


changing = Agent(
    name="changing",
    model="openai-chat:nobody",
    instructions="You look.",
    tools=[look, deserted],
    max_steps=100,
    # A second attempt would hide that the first had a wrong prompt.
    model_attempts=1,
)


@workflow.defn
class OneConversation:
    """A turn by each of some models."""

    @workflow.run
    async def run(self, models: list[str]) -> list[str]:
        agent = DurableAgent("changing")
        return [(await agent.run("Go.", model=model)).output for model in models]
