"""A query of a run that no worker has cached, with an update right after it: the history can be replayed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.worker import Replayer

from mulligan import data_converter
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows.agent_workflow import AgentWorkflow
from tests.support.lab import DONE, Lab, call

RUNS = 20
QUEUE = "queries-and-updates"


@asynccontextmanager
async def serving(lab: Lab, module: str, queue: str) -> AsyncIterator[None]:
    """A worker with its own connection, and therefore its own cache."""
    client = await lab.another_client()
    async with running_worker(client, load([module]), lab.telemetry, queue):
        yield


async def waits_in_queue(handle: Any) -> None:
    """Return once the run's tool waits for a worker."""
    while True:
        pending = (await handle.describe()).raw_description.pending_activities
        if [each.state for each in pending if each.activity_type.name == "call_tool"] == [
            PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
        ]:
            return
        await asyncio.sleep(0.02)


async def has_result(handle: Any) -> None:
    """Return once the tool's result waits for the run's worker."""
    while not (await handle.describe()).raw_description.HasField("pending_workflow_task"):
        await asyncio.sleep(0.02)


async def test_a_query_delivers_nothing_that_no_workflow_task_has_recorded(lab: Lab) -> None:
    """The new worker gets a query, a tool result and a message at once. Whichever of them it handles first, the history
    replays and the run completes. There are several runs, because the server chooses the order."""
    far = "tests.support.remote_tool_agents"
    async with serving(lab, far, QUEUE):
        at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, QUEUE)
        handles = [await at.start([call("embed", '{"text": "abc"}'), DONE, DONE], agent="far") for _ in range(RUNS)]
        await asyncio.gather(*map(waits_in_queue, handles))
    queries = [asyncio.create_task(handle.query("progress")) for handle in handles]
    async with serving(lab, "tests.support.gpu_tools", "gpu"):
        await asyncio.gather(*map(has_result, handles))
    message = {"text": "And hurry!", "id": "m"}
    updates = [asyncio.create_task(handle.execute_update("send_message", message)) for handle in handles]
    async with serving(lab, far, QUEUE):
        await asyncio.gather(*queries, *updates)
        results = await asyncio.gather(*(handle.result() for handle in handles))
        conversations = [(await handle.query("messages"))["messages"] for handle in handles]
    assert [result["status"] for result in results] == ["completed"] * RUNS
    assert [[m["text"] for m in messages].count("And hurry!") for messages in conversations] == [1] * RUNS
    replayer = Replayer(workflows=[AgentWorkflow], data_converter=data_converter)
    for handle in handles:
        await replayer.replay_workflow(await handle.fetch_history())
