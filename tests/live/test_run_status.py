"""A run says one status wherever it is looked at: by its query, memo, search attribute, in HTTP, in lists, in the console."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from mulligan import events
from mulligan.client.read_run import wait_for_end
from mulligan.run_view.run_view import RunView
from mulligan.wire.search_attributes import STATUS_ATTRIBUTE
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab
from tests.support.openai_turn import Turn
from tests.support.people_agents import wake

REFUND = '{"order": 7, "amount": {"euros": 12.5}}'


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    async with http_server(lab.client) as served:
        yield served


@pytest.fixture(scope="module")
async def jobs(lab: Lab) -> AsyncIterator[Lab]:
    queue = f"jobs-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load(["tests.support.deferred_agents"]), lab.telemetry, queue):
        yield Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)


async def said_everywhere(door: Door, handle: Any) -> dict[str, Any]:
    """The run's status by each door."""
    described = await handle.describe()
    read = (await door.http.get(f"/api/runs/{handle.id}")).json()
    page = (await door.http.get(f"/console/runs/{handle.id}")).text
    heading = page.split('<div class="heading">')[1].split("</div>")[0]
    view = RunView()
    for each in (await handle.query("events", args=[0, 1000]))["events"]:
        view.add(events.EVENT.validate_python(each))
    return {
        "query": (await handle.query("progress"))["status"],
        "memo": (await described.memo()).get("mulligan_status", "running"),
        "attribute": described.typed_search_attributes.get(STATUS_ATTRIBUTE),
        "http": read["status"],
        "console": heading.split('class="status is-')[1].split('"')[0],
        "events": view.status,
    }


async def until(door: Door, handle: Any, status: str) -> None:
    """Wait until the run has a status; then each door says so, and a list that is filtered by it has the run."""
    while (await handle.query("progress"))["status"] != status:
        await asyncio.sleep(0.05)
    said = await said_everywhere(door, handle)
    assert said == dict.fromkeys(said, status)
    for each in ("running", "waiting"):
        while (handle.id in await listed(door, each)) is not (each == status):
            await asyncio.sleep(0.1)


async def listed(door: Door, status: str) -> list[str]:
    runs = (await door.http.get(f"/api/runs?status={status}&limit=500")).json()["runs"]
    assert {run["status"] for run in runs} <= {status}
    return [run["id"] for run in runs]


async def test_a_run_waits_for_a_person_only_when_nothing_else_of_it_runs(lab: Lab, door: Door) -> None:
    calls = [("refund", REFUND, "r"), ("nap", '{"seconds": 60}', "n")]
    handle = await lab.start([Turn(calls=calls), DONE], agent="desk")
    while [each["call_id"] for each in await handle.query("pending")] != ["r"]:
        await asyncio.sleep(0.05)
    await until(door, handle, "running")
    await wake()
    await until(door, handle, "waiting")
    await handle.execute_update("decide", {"call_id": "r", "decision": "deny"})
    await handle.result()
    assert (await door.http.get(f"/api/runs/{handle.id}")).json()["status"] == "completed"


@pytest.mark.parametrize(
    "work",
    [("order_report", '{"name": "x"}', "d"), ("wait_until", '{"seconds": 86400}', "d")],
    ids=["callback", "timer"],
)
async def test_a_run_waits_for_a_callback_or_a_timer(jobs: Lab, door: Door, work: tuple[str, str, str]) -> None:
    handle = await jobs.start([Turn(calls=[work]), DONE], agent="job_clerk")
    await until(door, handle, "waiting")
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert (await door.http.get(f"/api/runs/{handle.id}")).json()["status"] == "cancelled"


async def test_a_run_works_while_a_model_answers(lab: Lab, door: Door) -> None:
    gate = asyncio.Event()
    handle = await lab.start([Turn(text="done", wait=gate)])
    while ((await handle.query("progress"))["waiting_for"] or {}).get("kind") != "model":
        await asyncio.sleep(0.05)
    await until(door, handle, "running")
    gate.set()
    assert (await handle.result())["status"] == "completed"


@pytest.mark.parametrize("status", ["terminated", "timed_out"])
async def test_what_only_temporal_knows_of_an_end_has_a_word_of_the_same_vocabulary(
    lab: Lab, door: Door, status: str
) -> None:
    gate, run_id = asyncio.Event(), f"run-{uuid.uuid4().hex[:8]}"
    lab.model.script(run_id, [Turn(text="done", wait=gate)])
    run_input = {"agent": "shop", "prompt": "Go.", "model": f"openai-chat:{run_id}"}
    limit = timedelta(seconds=2) if status == "timed_out" else None
    handle: Any = await lab.client.start_workflow(
        "AgentWorkflow", run_input, id=run_id, task_queue=lab.task_queue, execution_timeout=limit
    )
    await handle.query("progress")  # its first workflow task has completed
    if status == "terminated":
        await handle.terminate("enough")
    assert (await wait_for_end(handle)).status == status
    assert (await door.http.get(f"/api/runs/{run_id}")).json()["status"] == status
    while run_id not in await listed(door, status):
        await asyncio.sleep(0.1)
    ended = [event async for event in events.follow(lab.client, run_id)][-1]
    assert isinstance(ended, events.RunEnded)
    assert ended.status == status
    assert status in (await door.http.get(f"/console/runs/{run_id}")).text
    gate.set()
