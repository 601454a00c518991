"""Whatever the order of results, updates, timers and cancellations: no activation fails, and each call has one result."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from tests.schedules.cases import QUICK, Case, agents, scripts
from tests.schedules.explore import explore
from tests.schedules.real_activities import RealActivities


@pytest.fixture(scope="module")
def activities() -> Iterator[RealActivities]:
    """The activities of all cases."""
    with RealActivities(agents, scripts) as opened:
        yield opened


@pytest.mark.filterwarnings("ignore::temporalio.workflow.UnfinishedUpdateHandlersWarning")
@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_every_order_of_events_ends_the_run_as_its_rules_say(case: Case, activities: RealActivities) -> None:
    """`make schedules` explores more cases, and replays each of their runs. The rules are in tests/schedules/invariants.py."""
    explored = explore(case, activities, most=1_000, seconds=math.inf, replay_each=3)
    assert explored.faults == []
    assert explored.is_complete
