"""Agents whose tools wait until a file exists; one watcher serves all waiting runs. Only worker processes load this file."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from mulligan import Agent, Call, Say, Script, ToolContext, tool
from mulligan.workflows import limits

limits.HEARTBEAT_TIMEOUT = timedelta(minutes=10)
"""None of these workers is lost, but on a busy machine heartbeats of hundreds of calls come late."""


class Gates:
    """Gates that are opened by the creation of files."""

    def __init__(self) -> None:
        self._gates: defaultdict[str, threading.Event] = defaultdict(threading.Event)
        self._here: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._came: defaultdict[str, list[str]] = defaultdict(list)

    def wait(self, path: str, who: str) -> None:
        self._came[path].append(who)
        self._gates[path].wait()

    async def opened(self, path: str, who: str) -> None:
        self._came[path].append(who)
        self._gates[path]  # creates the entry, which is watched from now on
        await self._here[path].wait()

    async def watch(self) -> None:
        while True:
            for path, who in list(self._came.items()):
                Path(f"{path}.came").write_text(str(len(set(who))))
            for path in [path for path in list(self._gates) if os.path.exists(path)]:
                self._gates[path].set()
                self._here[path].set()
            await asyncio.sleep(0.2)


@asynccontextmanager
async def resources() -> AsyncIterator[Gates]:
    """The gates and their watcher."""
    gates = Gates()
    watching = asyncio.create_task(gates.watch())
    yield gates
    watching.cancel()


@tool(timeout=900)
async def wait_here(ctx: ToolContext) -> str:
    """Wait."""
    await ctx.resources.opened(ctx.metadata["gate"], ctx.workflow_id)
    return "it is open"


@tool(timeout=900)
def wait_in_a_thread(ctx: ToolContext) -> str:
    """Wait in a thread."""
    ctx.resources.wait(ctx.metadata["gate"], ctx.workflow_id)
    return "it is open"


crowd = Agent(name="crowd", model="scripted:crowd", tools=[wait_here])
threads = Agent(name="threads", model="scripted:threads", tools=[wait_in_a_thread])
script = Script("crowd", [Say(calls=[Call("wait_here")]), Say("done")])
in_threads = Script("threads", [Say(calls=[Call("wait_in_a_thread")]), Say("done")])
asked = Agent(name="asked", model="openai-chat:crowd", tools=[wait_here])
