"""Agents of a fleet that is upgraded (tests/system/test_upgrade.py): an earlier release loads them too, so they use what it exports.

What the tools did is in the folder `FLEET`, in the file `effects`. The file `go` in it ends the calls that hold.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from mulligan import Agent, Call, CodeMode, Message, Say, Script, ToolContext, last_result, tool
from mulligan.tools import wait_until

FOLDER = Path(os.environ["FLEET"])


def note(ctx: ToolContext) -> None:
    """One line for each effect: the run, the call, the process."""
    with (FOLDER / "effects").open("a") as file:
        file.write(f"{ctx.workflow_id} {ctx.call_id} {os.getpid()}\n")


@tool
async def book(ctx: ToolContext) -> str:
    """Book a seat."""
    await asyncio.sleep(0.1)
    note(ctx)
    return "booked"


@tool(timeout=300)
async def hold(ctx: ToolContext) -> str:
    """Hold a seat until the file `go` exists."""
    (FOLDER / f"holds-{ctx.workflow_id.replace('/', '-')}").touch()
    while not (FOLDER / "go").exists():
        await asyncio.sleep(0.05)
    note(ctx)
    return "held"


@tool(needs_approval=True)
async def pay(ctx: ToolContext) -> str:
    """Pay."""
    note(ctx)
    return "paid"


@tool(deferred=True)
async def order(ctx: ToolContext) -> str:
    """Order from somebody who answers later."""
    note(ctx)
    return "ordered"


CODE = """
first = await book()
second = await hold()
third = await book()
print(first, second, third)
"""
done = Say("Done.")


def sleep(messages: Sequence[Message]) -> Say:
    """Wait for one timer after the other until the file `go` exists, then book."""
    if last_result(messages) == "booked":
        return done
    if (FOLDER / "go").exists():
        return Say(calls=[Call("book", {})])
    return Say(calls=[Call("wait_until", {"seconds": 3})])


books = Script("books", [*(Say(calls=[Call("book", {})]) for _ in range(4)), done])
holds = Script("holds", [Say(calls=[Call(name, {})]) for name in ("book", "hold", "book")] + [done])
pays = Script("pays", [Say(calls=[Call("pay", {}, id="asked")]), Say(calls=[Call("book", {})]), done])
orders = Script("orders", [Say(calls=[Call("order", {}, id="asked")]), Say(calls=[Call("book", {})]), done])
asks = Script("asks", [Say(calls=[Call("holder", {"prompt": "Hold."})]), Say(calls=[Call("book", {})]), done])
writes = Script("writes", [Say(calls=[Call("run_code", {"code": CODE})]), done])
sleeps = Script("sleeps", [sleep])
spends = Script("spends", [*(Say(calls=[Call("book", {})]) for _ in range(2)), done])
booker = Agent(name="booker", model="scripted:books", tools=[book])
holder = Agent(name="holder", model="scripted:holds", tools=[book, hold])
payer = Agent(name="payer", model="scripted:pays", tools=[book, pay])
orderer = Agent(name="orderer", model="scripted:orders", tools=[book, order])
asker = Agent(name="asker", model="scripted:asks", tools=[book, holder.as_tool(description="Holds a seat.")])
writer = Agent(name="writer", model="scripted:writes", tools=[book, hold], features=[CodeMode()])
sleeper = Agent(name="sleeper", model="scripted:sleeps", tools=[book, wait_until], max_steps=1_000)
spender = Agent(name="spender", model="scripted:spends", tools=[book])
"""Its tenant can pay for the first of its model calls until the budget is raised."""
