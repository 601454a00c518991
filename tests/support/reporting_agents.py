"""A tree of agents whose tools report their progress, for watchers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from mulligan import Agent, Call, Message, Say, Script, ToolContext, last_result, tool


@tool(timeout=60)
async def import_rows(path: str, ctx: ToolContext) -> str:
    """Report a progress until a file is there."""
    ctx.heartbeat(f"10 of 100 rows of {Path(path).name}")
    while not Path(path).exists():
        await asyncio.sleep(0.05)
    return "imported"


loader = Agent(name="loader", model="scripted:loader", tools=[import_rows])
loader_script = Script(
    "loader",
    [
        lambda messages: Say(calls=[Call("import_rows", {"path": messages[0].text})]),
        lambda messages: Say(last_result(messages)),
    ],
)


def _for_both(messages: Sequence[Message]) -> Say:
    """A call of the loader for each of two files."""
    return Say(calls=[Call("loader", {"prompt": f"{messages[0].text}/{name}"}) for name in ("left", "right")])


foreman = Agent(name="foreman", model="scripted:foreman", tools=[loader.as_tool(description="Imports a file.")])
foreman_script = Script("foreman", [_for_both, Say("Both are imported.")])
director = Agent(name="director", model="scripted:director", tools=[foreman.as_tool(description="Imports a folder.")])
director_script = Script(
    "director",
    [lambda messages: Say(calls=[Call("foreman", {"prompt": messages[0].text})]), Say("All is imported.")],
)
