"""The short form of `make chaos`: one seed of kills of supervised processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mulligan.devserver import temporal_server
from tests.chaos.faults import faults_of
from tests.chaos.seed import Plan, run_seed


@pytest.mark.timeout(300)
async def test_kills_at_random_moments_repeat_nothing_lose_nothing_and_leave_no_run_stuck(tmp_path: Path) -> None:
    """Every effect is in a ledger outside of the processes; the conversation, the spans and the ledger agree."""
    plan = Plan(seed=1, processes=2, runs=3, steps=10, kills=3)
    async with temporal_server() as server:
        outcome = await run_seed(plan, server, tmp_path)
    assert outcome.kills
    assert faults_of(outcome) == []
