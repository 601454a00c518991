"""Tenants take turns on a real server that has Temporal's fairness."""

from __future__ import annotations

import pytest

from benchmarks.fairness import measure


@pytest.mark.parametrize(("fair", "fewest", "most"), [(True, 0, 15), (False, 50, 200)], ids=["fair", "by time"])
async def test_a_run_does_not_wait_for_the_queue_of_another_tenant(fair: bool, fewest: int, most: int) -> None:
    """By the order of model calls, with one slot for activities. Without fairness the run waits for most of the queue."""
    waited = await measure(fair=fair, queued=100, slots=1, call_seconds=0.02)
    assert fewest <= waited.busy_calls_before <= most
