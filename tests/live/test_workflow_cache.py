"""The limit of runs that a worker keeps in memory, which may be zero."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab, call

RUNS = 5


async def event_types(handle: Any) -> Counter[str]:
    """How often each type of event is in the run's history."""
    return Counter([EventType.Name(event.event_type) async for event in handle.fetch_history_events()])


@pytest.mark.parametrize("cached", ["0", "2"])
async def test_runs_complete_when_more_are_open_than_the_worker_caches(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, cached: str
) -> None:
    """No workflow task times out, queries are answered, and no span is exported twice."""
    queue = f"cached-{cached}"
    client = await lab.another_client()
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    with monkeypatch.context() as environment:
        environment.setenv("MULLIGAN_MAX_CACHED_WORKFLOWS", cached)
        async with running_worker(client, load(["tests.support.shop_agents"]), lab.telemetry, queue):
            handles = [await at.start([call("now"), call("click", '{"selector": "#a"}'), DONE]) for _ in range(RUNS)]
            answers = await asyncio.gather(*(handle.query("progress") for handle in handles))
            runs = await asyncio.gather(*(at.look(handle) for handle in handles))
    assert {answer["status"] for answer in answers} <= {"running", "completed"}
    assert [ran.result["status"] for ran in runs] == ["completed"] * RUNS
    assert [len(ran.spans_of("agent.finish")) for ran in runs] == [1] * RUNS
    for ran in runs:
        assert (await event_types(ran.handle))["EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT"] == 0
