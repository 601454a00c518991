"""Tenants take turns on a real server that has Temporal's fairness."""

from __future__ import annotations

import pytest
import yaml

from benchmarks.fairness import FAIRNESS, measure
from tests.support.docs_block import docs_block


@pytest.mark.parametrize(("fair", "fewest", "most"), [(True, 0, 15), (False, 50, 200)], ids=["fair", "by time"])
async def test_a_run_does_not_wait_for_the_queue_of_another_tenant(fair: bool, fewest: int, most: int) -> None:
    """By the order of model calls, with one slot for activities. Without fairness the run waits for most of the queue."""
    waited = await measure(fair=fair, queued=100, slots=1, call_seconds=0.02)
    assert fewest <= waited.busy_calls_before <= most


def test_the_page_of_tenants_has_the_configuration_that_is_measured() -> None:
    """docs/tenants.md, as a file of the server's dynamic configuration."""
    [(name, [constraint])] = yaml.safe_load(docs_block("docs/tenants.md", "matching")).items()
    assert (f"{name}={str(constraint['value']).lower()}",) == FAIRNESS
