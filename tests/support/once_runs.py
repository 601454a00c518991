"""Runs of the agents whose calls are made once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.lab import Ran
from tests.support.once_agents import executions


def books(ledger: Path, *outcomes: str) -> dict[str, Any]:
    """The input of a run of the agent `writer`."""
    return {
        "agent": "writer",
        "metadata": {"ledger": str(ledger), **({"outcomes": ",".join(outcomes)} if outcomes else {})},
    }


def kinds(ran: Ran) -> list[str | None]:
    """The kind of each call's error; None of a call that succeeded."""
    return [each["result"]["error"] and each["result"]["error"]["kind"] for each in ran.calls]


async def started(ledger: Path, count: int = 1) -> None:
    """Wait until so many executions have begun."""
    while len(executions(ledger)) < count:
        await asyncio.sleep(0.02)


async def decide(handle: Any, call_id: str, decision: str, **more: Any) -> None:
    await handle.execute_update("decide", {"call_id": call_id, "decision": decision, **more})
