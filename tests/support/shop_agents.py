"""The agents that most live tests run: tools that work, and tools that fail in every way that tools do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from mulligan import Agent, InvalidToolInput, Tool, ToolCall, ToolContext, ToolError, tool

RAN: dict[str, list[Any]] = defaultdict(list)
"""The calls that ran, by workflow id: (tool, arguments)."""


class Order(BaseModel):
    id: int
    note: str | None = None


@tool
async def search_orders(
    customer: str, ctx: ToolContext, limit: Annotated[int, Field(ge=1, le=50)] = 10, sort: Literal["new", "old"] = "new"
) -> list[Order]:
    """Search the orders of a customer.

    Args:
        customer: The customer's name.
        limit: How many at most.
    """
    RAN[ctx.workflow_id].append(("search_orders", {"customer": customer, "limit": limit, "sort": sort}))
    return [Order(id=7, note=f"{customer}'s")]


def element_is_selector(invalid: InvalidToolInput) -> object | None:
    if isinstance(invalid.arguments, dict) and "element" in invalid.arguments:
        return {"selector": invalid.arguments["element"]}
    return None


@tool(fix=element_is_selector)
def click(selector: str, ctx: ToolContext) -> str:
    """Click an element."""
    RAN[ctx.workflow_id].append(("click", {"selector": selector}))
    return f"clicked {selector}"


@tool
def now(ctx: ToolContext) -> str:
    """What time it is."""
    RAN[ctx.workflow_id].append(("now", {}))
    return "noon"


@tool
async def refuse(ctx: ToolContext) -> str:
    """Say no."""
    RAN[ctx.workflow_id].append(("refuse", {}))
    raise ToolError("The shop is closed until nine.")


@tool
def explode(ctx: ToolContext) -> str:
    """Raise."""
    RAN[ctx.workflow_id].append(("explode", {}))
    raise ZeroDivisionError("division by zero")


@tool
def leave(ctx: ToolContext) -> str:
    """Try to end the worker."""
    RAN[ctx.workflow_id].append(("leave", {}))
    raise SystemExit(3)


@tool(timeout=0.5)
def hang_thread(ctx: ToolContext) -> str:
    """Block a thread for longer than allowed."""
    RAN[ctx.workflow_id].append(("hang_thread", {}))
    time.sleep(5)
    return "late"


@tool(timeout=0.5)
async def hang_loop(ctx: ToolContext) -> str:
    """Block the event loop for longer than allowed."""
    RAN[ctx.workflow_id].append(("hang_loop", {}))
    time.sleep(3)  # noqa: ASYNC251 - the fault under test
    return "late"


@tool(timeout=0.5)
async def ignore_cancel(ctx: ToolContext) -> str:
    """Go on when cancelled."""
    RAN[ctx.workflow_id].append(("ignore_cancel", {}))
    for _ in range(30):
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            continue
    return "late"


@tool(attempts=3, retry_on=ConnectionError)
async def flaky(ctx: ToolContext) -> str:
    """Fail twice, then work."""
    RAN[ctx.workflow_id].append(("flaky", {"attempt": ctx.attempt, "key": ctx.idempotency_key}))
    if ctx.attempt < 3:
        raise ConnectionError("the line is down")
    return "worked"


Thing = Literal["circular", "nan", "bytes", "object", "generator", "exception", "none", "order", "dataclass", "huge"]


@dataclass
class Parcel:
    kilos: float


@tool
def give(what: Thing, ctx: ToolContext) -> Any:
    """Return something."""
    RAN[ctx.workflow_id].append(("give", {"what": what}))
    circular: list[Any] = []
    circular.append(circular)
    return {
        "circular": circular,
        "nan": [1.0, float("nan")],
        "bytes": b"\xff\x00",
        "object": object(),
        "generator": (n for n in range(3)),
        "exception": ValueError("an exception, returned"),
        "none": None,
        "order": Order(id=1),
        "dataclass": Parcel(kilos=2.5),
        "huge": "x" * 5_000_000,
    }[what]


@tool(timeout=60)
async def wait_for_file(ctx: ToolContext) -> str:
    """Wait until a file is there."""
    while not os.path.exists(ctx.metadata["file"]):
        await asyncio.sleep(0.05)
    return "it is there"


@tool(timeout=60)
async def die(ctx: ToolContext) -> str:
    """Kill the worker that runs it, the first time."""
    flag = ctx.metadata.get("flag", "")
    if not flag:
        raise ToolError("no flag file was named")
    if os.path.exists(flag):
        return "survived"
    with open(flag, "w") as file:
        file.write(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)
    return "unreachable"


@tool(timeout=60, attempts=2)
async def die_once(ctx: ToolContext) -> str:
    """Kill the worker that runs it, the first time; it may be started twice."""
    return await die(ctx)


@tool
def forget_orders(older_than_days: float | None, ctx: ToolContext) -> str:
    """Forget old orders; all of them where no age is given."""
    RAN[ctx.workflow_id].append(("forget_orders", {"older_than_days": older_than_days}))
    return "forgot all" if older_than_days is None else f"forgot those older than {older_than_days}"


TOOLS: list[Tool] = [
    search_orders,
    click,
    now,
    refuse,
    explode,
    leave,
    hang_thread,
    hang_loop,
    ignore_cancel,
    flaky,
    give,
    wait_for_file,
    die,
    die_once,
    forget_orders,
]

shop = Agent(
    name="shop",
    model="openai-chat:nobody",
    instructions="You work in a shop.",
    tools=TOOLS,
    max_steps=6,
    model_patience=3,
)
strict_shop = Agent(name="strict", model="openai-chat:nobody", tools=TOOLS, handle_errors=False)


def no_clicks_on_b(call: ToolCall, ctx: ToolContext) -> str | None:
    selector = json.loads(call.arguments).get("selector")
    if selector == "#crash":
        raise LookupError("who is this?")
    return f"nobody may {call.name} on {selector} in {ctx.agent}." if selector == "#b" else None


@tool(once=True)
def pay(euros: float, ctx: ToolContext) -> str:
    """Pay."""
    RAN[ctx.workflow_id].append(("pay", {"euros": euros}))
    return f"paid {euros:g} euros"


till = Agent(name="till", model="openai-chat:nobody", tools=[pay])
guarded = Agent(name="guarded", model="openai-chat:nobody", tools=[click], guard=no_clicks_on_b)
counted = Agent(name="counted", model="openai-chat:nobody", tools=TOOLS, model_patience=5)
asked = Agent(
    name="asked",
    model="openai-chat:nobody",
    instructions=lambda run_input: f"You serve {run_input.metadata.get('who', 'nobody')}.",
    tools=[now],
)
