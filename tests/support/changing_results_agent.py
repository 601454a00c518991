"""An agent whose tool returns another result each time, and can be made to wait: for tests of resets."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from threading import Event

from temporalio import workflow

from mulligan import Agent, DurableAgent, ToolCall, ToolContext, tool

RAN: Counter[tuple[str, int]] = Counter()
"""How often the tool was started, by workflow id and argument."""
GATES: dict[tuple[str, int, int], Event] = {}
"""The event that an execution waits for, if any: by workflow id, argument and the number of the execution, from 1."""


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


@tool(task_queue="changing-elsewhere")
async def elsewhere() -> str:
    """A tool of another worker."""
    return "é" * 200


KEYS: list[tuple[str, str, str]] = []
"""The idempotency keys that the guard and the tool of `payer` saw: (workflow id, who is paid, key)."""


@tool
async def pay(to: str, ctx: ToolContext) -> str:
    """Pay somebody."""
    KEYS.append((ctx.workflow_id, to, ctx.idempotency_key))
    return "paid"


def note_key(call: ToolCall, ctx: ToolContext) -> None:
    """Allow each call."""
    KEYS.append((ctx.workflow_id, json.loads(call.arguments)["to"], ctx.idempotency_key))


payer = Agent(name="payer", model="openai-chat:nobody", instructions="You pay.", tools=[pay], guard=note_key)

changing = Agent(
    name="changing",
    model="openai-chat:nobody",
    instructions="You look.",
    tools=[look, deserted, elsewhere],
    max_steps=100,
    # A second attempt would hide a wrong prompt of the first.
    model_attempts=1,
)


@workflow.defn
class OneConversation:
    """One turn with each of the models."""

    @workflow.run
    async def run(self, models: list[str]) -> list[str]:
        agent = DurableAgent("changing")
        return [(await agent.run("Go.", model=model)).output for model in models]
