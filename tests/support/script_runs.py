"""Runs whose models write scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.lab import DONE, Ran, call
from tests.support.openai_turn import Turn


def script(code: str, call_id: str = "s") -> Turn:
    """A turn in which the model writes a script."""
    return call("run_code", json.dumps({"code": code}), call_id)


async def run(at: Any, *scripts: str, agent: str = "coder", ledger: Path | None = None, **more: Any) -> Ran:
    """Run an agent that writes these scripts, one in each step."""
    turns = [script(each, f"s{n}") for n, each in enumerate(scripts)]
    metadata = {"ledger": str(ledger)} if ledger else {}
    ran: Ran = await at.run([*turns, DONE], agent=agent, metadata=metadata, **more)
    return ran


def text_of(ran: Ran, number: int = 0) -> str:
    text: str = ran.calls[number]["result"]["text"]
    return text
