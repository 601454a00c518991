"""Agents with tools that write, each of them with `once`. What the tools did is in a file, which outlives a worker.

The run's metadata name the `ledger`, and what happens to the first executions of each call: `outcomes`, such as `error,ok`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any

from temporalio import workflow

from mulligan import Agent, Compaction, DurableAgent, Say, Script, ToolContext, ToolError, tool
from mulligan.tools import ask_person

RELEASED: set[str] = set()
"""The ids of the runs whose executions wait no longer: tools run on an event loop of their own."""


def executions(ledger: Path) -> list[dict[str, Any]]:
    """The executions of calls in their order: tool, arguments, idempotency key, and what happened."""
    return [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []


async def _execute(name: str, arguments: Any, ctx: ToolContext) -> str:
    ledger = Path(ctx.metadata.get("ledger", os.devnull))
    before = sum((each["tool"], each["arguments"]) == (name, arguments) for each in executions(ledger))
    outcomes = ctx.metadata.get("outcomes", "ok").split(",")
    outcome = outcomes[min(before, len(outcomes) - 1)]
    entry = {"tool": name, "arguments": arguments, "key": ctx.idempotency_key, "outcome": outcome}
    with ledger.open("a") as file:
        file.write(json.dumps(entry) + "\n")
    match outcome:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            await asyncio.sleep(3600)
        case "wait" | "wait_error":
            while ctx.workflow_id not in RELEASED:
                await asyncio.sleep(0.02)
    match outcome:
        case "error" | "wait_error":
            raise ToolError("The bank refuses.")
        case "long":
            return "é" * 3_000
    return f"{name} {json.dumps(arguments)}: receipt {before + 1}"


@tool(once=True, timeout=300)
async def pay(amount: float, ctx: ToolContext, to: str = "shop") -> str:
    """Pay."""
    return await _execute("pay", {"amount": amount, "to": to}, ctx)


@tool(once=True, timeout=1)
async def pay_quickly(amount: float, ctx: ToolContext) -> str:
    """Pay, within a second."""
    return await _execute("pay_quickly", {"amount": amount}, ctx)


@tool(once=True, local=True)
async def note(text: str, ctx: ToolContext) -> str:
    """Write a note, as a local activity."""
    return await _execute("note", {"text": text}, ctx)


@tool(once=True, needs_approval=True)
async def refund(order: int, ctx: ToolContext) -> str:
    """Give money back."""
    return await _execute("refund", {"order": order}, ctx)


@tool(once=True, needs_approval=True, deferred=True)
async def ship(order: int, ctx: ToolContext) -> str:
    """Ship an order: it is shipped later."""
    return await _execute("ship", {"order": order}, ctx)


@tool(once=True, deferred=True)
async def build(name: str, ctx: ToolContext) -> str:
    """Build something, which takes long."""
    return await _execute("build", {"name": name}, ctx)


@tool(once="step")
async def tick(number: int, ctx: ToolContext) -> str:
    """Tick."""
    return await _execute("tick", {"number": number}, ctx)


@tool(once="conversation")
async def greet(name: str, ctx: ToolContext) -> str:
    """Greet somebody."""
    return await _execute("greet", {"name": name}, ctx)


@tool(once=True, handle_errors=False)
async def strict(number: int, ctx: ToolContext) -> str:
    """Do something whose failures fail the run."""
    return await _execute("strict", {"number": number}, ctx)


@tool(once=True, handle_errors=lambda error: f"{type(error).__name__} {error.kind} {error.raw_arguments}")
async def told(number: int, ctx: ToolContext) -> str:
    """Do something whose failures are told in other words."""
    return await _execute("told", {"number": number}, ctx)


@tool(once=True)
async def pack(items: set[str], ctx: ToolContext, weight: Decimal = Decimal(1)) -> str:
    """Pack a parcel."""
    return await _execute("pack", {"items": [*items], "weight": str(weight)}, ctx)


helper = Agent(name="helper", model="scripted:helper", instructions="You help.")
helping = Script("helper", [Say("helped")])
writer = Agent(
    name="writer",
    model="openai-chat:none",
    tools=[
        pay, pay_quickly, note, refund, ship, build, tick, greet, strict, told, ask_person,
        helper.as_tool(description="Helps.", once=True),
    ],
    max_steps=50,
    max_repeats=None,
)  # fmt: skip
packer = Agent(name="packer", model="openai-chat:none", tools=[pack, refund], max_steps=50)
compacting = Agent(
    name="compacting", model="openai-chat:none", tools=[pay, note], max_steps=50, features=[Compaction(at=1_000)]
)


@workflow.defn
class SeveralTurns:
    """Turns of one agent."""

    @workflow.run
    async def run(self, model: str, prompts: list[str], max_steps: list[int | None]) -> list[str]:
        agent = DurableAgent("writer")
        turns = zip(prompts, max_steps, strict=True)
        return [(await agent.run(prompt, model=model, max_steps=most)).status for prompt, most in turns]
