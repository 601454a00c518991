"""Agents whose models write scripts. What the tools did is in a file, which outlives a worker.

The run's metadata name the `ledger`, and the number of the execution at which the worker dies: `kill_at`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Annotated, Any, TypedDict

from pydantic import Field

from mulligan import Agent, CodeMode, InvalidToolInput, Tool, ToolContext, ToolError, tool
from mulligan.tools import ask_person


class Order(TypedDict):
    """An order."""

    id: int
    total: float


def executions(ledger: Path) -> list[dict[str, Any]]:
    """The executions of calls in their order: tool, arguments, call id, idempotency key."""
    return [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []


def _note(ctx: ToolContext, name: str, **arguments: Any) -> None:
    ledger = Path(ctx.metadata.get("ledger", os.devnull))
    entry = {"tool": name, "arguments": arguments, "call_id": ctx.call_id, "key": ctx.idempotency_key}
    with ledger.open("a") as file:
        file.write(json.dumps(entry) + "\n")
    if ctx.metadata.get("kill_at") == str(len(executions(ledger))):
        os.kill(os.getpid(), signal.SIGKILL)


def _first_number(invalid: InvalidToolInput) -> object | None:
    arguments = invalid.arguments
    return {"id": abs(arguments["id"])} if isinstance(arguments, dict) and "id" in arguments else None


@tool(fix=_first_number)
async def get_order(id: Annotated[int, Field(ge=0)], ctx: ToolContext) -> Order:  # noqa: A002
    """Get an order."""
    _note(ctx, "get_order", id=id)
    if id == 99:
        raise ToolError("There is no order 99.")
    return {"id": id, "total": id * 10.0}


@tool
async def note(text: str, ctx: ToolContext) -> str:
    """Note a text."""
    _note(ctx, "note", text=text)
    return f"noted {text}"


@tool
async def slow(seconds: float, ctx: ToolContext) -> float:
    """Take some seconds."""
    await asyncio.sleep(seconds)
    _note(ctx, "slow", seconds=seconds)
    return seconds


@tool
def nothing(ctx: ToolContext) -> float:
    """Return no number."""
    _note(ctx, "nothing")
    return float("nan")


@tool(needs_approval=True)
async def refund(order: int, ctx: ToolContext) -> str:
    """Refund an order."""
    _note(ctx, "refund", order=order)
    return f"refunded {order}"


@tool(once=True)
async def pay(amount: int, ctx: ToolContext) -> str:
    """Pay."""
    _note(ctx, "pay", amount=amount)
    return f"paid {amount}"


@tool(timeout=1)
async def hang(ctx: ToolContext) -> str:
    """Never end."""
    _note(ctx, "hang")
    await asyncio.sleep(3600)
    return ""


helper = Agent(name="helper", model="scripted:helper", instructions="You help.")
TOOLS: list[Tool] = [get_order, note, slow, nothing, refund, pay, hang, ask_person]
coder = Agent(name="coder", model="openai-chat:nobody", tools=TOOLS, features=[CodeMode(timeout=3)], max_steps=50)
patient_coder = Agent(
    name="patient_coder", model="openai-chat:nobody", tools=TOOLS, features=[CodeMode(timeout=120)], max_steps=50
)
"""Its scripts end by other limits than their time, however slow the machine is."""
strict_coder = Agent(
    name="strict_coder",
    model="openai-chat:nobody",
    tools=[get_order, note],
    features=[CodeMode(tools=[get_order], max_calls=5)],
)
