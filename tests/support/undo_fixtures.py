"""What the tests of undo share: a worker of the agents whose tools can be undone (undo_agents.py), and its runs' ledger."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker

if TYPE_CHECKING:
    from tests.support.lab import Lab

MODULE = "tests.support.undo_agents"


@asynccontextmanager
async def undo_desk(lab: Lab) -> AsyncIterator[Lab]:
    """A lab whose worker serves these agents."""
    desk = replace(lab, task_queue=f"undo-{uuid.uuid4().hex[:6]}", workers=None)
    async with running_worker(desk.client, load([MODULE]), lab.telemetry, desk.task_queue):
        yield desk


@pytest.fixture(name="ledger")
def undo_ledger(tmp_path: Path) -> Path:
    """What tools and undos have done."""
    return tmp_path / "ledger"


def of(ledger: Path, **more: Any) -> dict[str, Any]:
    """The input of a run that has this ledger."""
    return {"metadata": {"ledger": str(ledger)}, "agent": "desk", **more}
