"""The short form of `make chaos`: kills of supervised processes, at random moments and at named points."""

from __future__ import annotations

from pathlib import Path

import pytest

from mulligan.devserver import temporal_server
from tests.chaos.faults import faults_of
from tests.chaos.plan import Plan
from tests.chaos.seed import HISTORY, run_seed

PLANS = [
    Plan(seed=1, victim="child", processes=2, runs=3, steps=10, kills=3),
    Plan(seed=2, victim="point", processes=2, runs=2, steps=6, kills=4),
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.victim)
async def test_kills_repeat_nothing_lose_nothing_and_leave_no_run_stuck(plan: Plan, tmp_path: Path) -> None:
    """Every effect is in a ledger outside of the processes; the conversation, the spans and the ledger agree."""
    async with temporal_server(dynamic_config=[HISTORY]) as server:
        outcome = await run_seed(plan, server, tmp_path)
    assert outcome.kills
    assert faults_of(outcome) == []
