"""Agents whose tools can be undone. What tools and undos did is in a file, which outlives a worker: the `ledger` of the run's
metadata. While the file `ledger.broken` exists, the undo of `fragile` fails.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypedDict

from mulligan import Agent, Call, CodeMode, Say, Script, Tool, ToolContext, ToolError, tool

MODEL = "openai-chat:nobody"


class Booking(TypedDict):
    """A booking."""

    id: int
    room: str


@asynccontextmanager
async def resources() -> AsyncIterator[str]:
    """What the tools find in their context, and so do their undos."""
    yield "the pool"


def lines(ledger: Path) -> list[dict[str, Any]]:
    """What happened, in its order."""
    return [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []


def write(ctx: ToolContext, what: str, **more: Any) -> None:
    """Add a line. One write of a short line is not torn by a kill."""
    entry = {
        "what": what, "run": ctx.workflow_id, "call": ctx.call_id, "key": ctx.idempotency_key, "pid": os.getpid(),
        "attempt": ctx.attempt, "resources": ctx.resources, "agent": ctx.agent, "step": ctx.step, **more,
    }  # fmt: skip
    with Path(ctx.metadata.get("ledger", os.devnull)).open("a") as file:
        file.write(json.dumps(entry) + "\n")


async def cancel_booking(arguments: dict[str, Any], result: Any, ctx: ToolContext) -> None:
    """Undo a booking."""
    write(ctx, "unbook", arguments=arguments, result=result)


@tool(undo=cancel_booking)
async def book(room: str, ctx: ToolContext, nights: int = 1) -> Booking:
    """Book a room."""
    if room == "none":
        raise ToolError("There is no such room.")
    write(ctx, "book", room=room, nights=nights)
    return {"id": len(room), "room": room}


@tool
async def mail(to: str, ctx: ToolContext) -> str:
    """Send a mail: nobody can take it back."""
    write(ctx, "mail", to=to)
    return f"sent to {to}"


def mend(arguments: Any, result: Any, ctx: ToolContext) -> None:
    """Undo a fragile call, unless that is broken now."""
    write(ctx, "mend", arguments=arguments, result=result)
    if Path(f"{ctx.metadata['ledger']}.broken").exists():
        raise ToolError("The shop is closed.")


@tool(undo=mend)
def fragile(part: str, ctx: ToolContext) -> str:
    """Change a part."""
    write(ctx, "fragile", part=part)
    return f"changed {part}"


@tool(undo=mend, undo_attempts=3)
def sturdy(part: str, ctx: ToolContext) -> str:
    """Change a part, whose undo is tried three times."""
    write(ctx, "sturdy", part=part)
    return f"changed {part}"


@tool(once="conversation", undo=cancel_booking)
async def book_once(room: str, ctx: ToolContext) -> Booking:
    """Book a room once."""
    write(ctx, "book_once", room=room)
    return {"id": 2, "room": room}


async def long_undo(arguments: Any, result: Any, ctx: ToolContext) -> None:
    """Undo a call as soon as somebody lets it go on."""
    write(ctx, "begin", arguments=arguments)
    while not Path(f"{ctx.metadata['ledger']}.go").exists():
        await asyncio.sleep(0.05)
    write(ctx, "effect", arguments=arguments)


@tool(undo=long_undo)
async def long_book(room: str, ctx: ToolContext) -> str:
    """Book a room, whose undo takes long."""
    write(ctx, "long_book", room=room)
    return room


@tool(attempts=2, timeout=1, undo=cancel_booking)
async def twice(room: str, ctx: ToolContext) -> str:
    """Book a room without saying so, and refuse to book it again."""
    if ctx.attempt == 1:
        write(ctx, "twice", room=room)
        await asyncio.sleep(3600)
    raise ToolError("It is booked already.")


@tool(undo=cancel_booking, max_result_chars=60)
async def tell(room: str) -> str:
    """Book a room, and tell it in a long text, which is cut."""
    return room * 100


@tool(needs_approval="lead", undo=cancel_booking)
async def lead_book(room: str, ctx: ToolContext) -> str:
    """Book a room that a lead approves."""
    write(ctx, "lead_book", room=room)
    return room


@tool(timeout=1, undo=cancel_booking)
async def hang(room: str, ctx: ToolContext) -> str:
    """Book a room, and never say so."""
    write(ctx, "hang", room=room)
    await asyncio.sleep(3600)
    return ""


async def slow_undo(arguments: dict[str, Any], result: Any, ctx: ToolContext) -> None:
    """Undo a call slowly, in two parts of which the effect is the boundary."""
    write(ctx, "begin", arguments=arguments)
    await asyncio.sleep(0.05)
    write(ctx, "effect", arguments=arguments)
    await asyncio.sleep(0.05)


@tool(undo=slow_undo)
async def place(number: int, ctx: ToolContext) -> str:
    """Place a thing."""
    write(ctx, "place", number=number)
    return f"placed {number}"


@tool(local=True, undo=cancel_booking)
async def quick(room: str, ctx: ToolContext) -> Booking:
    """Book at once."""
    write(ctx, "quick", room=room)
    return {"id": 1, "room": room}


async def call_off(arguments: Any, result: Any, ctx: ToolContext) -> None:
    """Undo an order that was completed."""
    write(ctx, "call_off", arguments=arguments, result=result)


@tool(deferred=True, result_type=dict[str, Any], undo=call_off)
async def order(room: str, ctx: ToolContext) -> str:
    """Order a room, which somebody confirms later."""
    write(ctx, "order", room=room)
    return "ordered"


@tool(undo=cancel_booking, max_result_chars=100)
async def book_many(rooms: int, ctx: ToolContext) -> list[Booking]:
    """Book many rooms: the result is cut."""
    write(ctx, "book_many", rooms=rooms)
    return [{"id": n, "room": "a room"} for n in range(rooms)]


@tool(task_queue="undo-far", undo=cancel_booking)
async def far_book(room: str) -> Booking:
    """Book a room; its code is on another worker (undo_far_tools.py)."""
    raise NotImplementedError(room)


TOOLS: list[Tool] = [book, mail, fragile, sturdy, hang, place, quick, order, book_many]
TOOLS += [book_once, long_book, twice, tell, lead_book]
helper = Agent(name="undo_helper", model="scripted:undo_helper", tools=[book, mail])
helping = Script(
    "undo_helper", [Say(calls=[Call("book", {"room": "below"}), Call("mail", {"to": "her"})]), Say("It is booked.")]
)
placer = Agent(name="placer", model="scripted:placer", tools=[place])
placing = Script("placer", [*(Say(calls=[Call("place", {"number": n})]) for n in range(4)), Say("All is placed.")])
desk = Agent(name="desk", model=MODEL, tools=[*TOOLS, helper.as_tool(description="Helps.")], max_steps=50)
second_desk = Agent(name="second_desk", model=MODEL, tools=[fragile])
first_desk = Agent(name="first_desk", model=MODEL, tools=[book], handoffs=[second_desk])
far_desk = Agent(name="far_desk", model=MODEL, tools=[far_book])
coding_desk = Agent(name="coding_desk", model=MODEL, tools=[book, mail, fragile], features=[CodeMode()])
