"""An agent whose calls hang as often as they are asked to, for `benchmarks/lost_worker.py`."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

from mulligan import Agent, tool

LEDGER = "LOST_WORKER_LEDGER"
"""The file with a line for each start of a tool."""
HANG = 120.0


def starts(name: str) -> list[dict[str, float]]:
    """The starts of a run's tool so far: the process, and when (Unix time)."""
    lines = map(json.loads, Path(os.environ[LEDGER]).read_text().splitlines())
    return [line for line in lines if line["name"] == name]


async def _started(name: str, hang: int, seconds: float) -> str:
    with Path(os.environ[LEDGER]).open("a") as file:  # noqa: ASYNC230 - one short line
        file.write(json.dumps({"name": name, "pid": os.getpid(), "at": time.time()}) + "\n")
    if len(starts(name)) <= hang:
        await asyncio.sleep(seconds)
    return "done"


@tool(attempts=5, timeout=HANG)
async def hold(name: str, hang: int) -> str:
    """Its first `hang` attempts wait."""
    return await _started(name, hang, HANG)


@tool(local=True)
async def hold_local(name: str, hang: int) -> str:
    """As `hold`, as a local activity."""
    return await _started(name, hang, 9)


@tool(timeout=HANG)
async def pause(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "done"


@tool(timeout=HANG)
async def block_loop(seconds: float) -> str:
    """An `async def` that blocks its event loop."""
    time.sleep(seconds)  # noqa: ASYNC251 - it is what is measured
    return "done"


@tool(timeout=HANG)
def hold_interpreter(rounds: int) -> str:
    """Keep Python's lock all the time, as some extensions in C do."""
    return str(sum(range(rounds)))


@tool(needs_approval=True)
async def refund(order_id: int) -> str:
    """Refund an order."""
    return f"Order {order_id} is refunded."


held = Agent(
    name="held",
    model="openai-chat:held",
    tools=[hold, hold_local, pause, block_loop, hold_interpreter, refund],
)
