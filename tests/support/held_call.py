"""An agent whose tool hangs at its first attempt, and then says in which process it runs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from mulligan import Agent, Call, Say, Script, ToolContext, tool

BEGUN = "HELD_CALL_BEGUN"
"""The file that gets a character for each first attempt."""


@tool(attempts=2)
async def hold(ctx: ToolContext) -> str:
    """Hold."""
    if ctx.attempt == 1:
        with Path(os.environ[BEGUN]).open("a") as file:
            file.write("1")
        await asyncio.sleep(50)
    return str(os.getpid())


script = Script("holder", [Say(calls=[Call("hold", {}, id="h")]), Say("done")])
holder = Agent(name="holder", model="scripted:holder", tools=[hold])
