"""The agent of `killed_scripts.py`: each call of its scripts writes its effect to a file, and then its process dies.

The run's metadata name the file, and the seed that decides when each process dies: half of them die in the middle of the
call; the others a moment after it, when the script has the result, or has made its next call.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from pathlib import Path

from mulligan import Agent, CodeMode, ToolContext, tool

SECONDS_AFTER = (0.02, 0.2)


@tool
async def pay(amount: int, ctx: ToolContext) -> int:
    """Pay an amount."""
    chance = random.Random(f"{ctx.metadata['seed']} {ctx.call_id}")
    is_inside = chance.random() < 0.5
    entry = {"call_id": ctx.call_id, "amount": amount, "pid": os.getpid(), "inside": is_inside}
    _write(Path(ctx.metadata["ledger"]), json.dumps(entry))
    if is_inside:
        _die()
    threading.Timer(chance.uniform(*SECONDS_AFTER), _die).start()
    return amount


def _write(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


payer = Agent(name="payer", model="openai-chat:nobody", tools=[pay], features=[CodeMode()])
