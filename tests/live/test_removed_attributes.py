"""Search attributes that somebody removes from the namespace while runs are open: the runs go on without them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from temporalio.api.operatorservice.v1 import RemoveSearchAttributesRequest
from temporalio.service import RPCError
from temporalio.worker import Replayer

from mulligan import data_converter
from mulligan.devserver import temporal_server
from mulligan.wire.search_attributes import SEARCH_ATTRIBUTES
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from mulligan.workflows.agent_workflow import AgentWorkflow
from tests.promise.test_people import REFUND, pending
from tests.support.lab import DONE, Lab
from tests.support.openai_turn import Turn
from tests.support.temporal import connect_to

NAMES = [each.name for each in SEARCH_ATTRIBUTES]


@pytest.fixture
async def desk(lab: Lab) -> AsyncIterator[Lab]:
    """A worker on a server of its own, whose attributes no other test needs."""
    async with temporal_server() as server:
        client = await connect_to(server)
        at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"desk-{uuid.uuid4().hex[:6]}")
        async with running_worker(client, load(["tests.support.people_agents"]), lab.telemetry, at.task_queue):
            yield at


async def remove_attributes(at: Lab, listed: Any) -> None:
    """Remove them, once a run has them; wait until the server does without them."""
    while not (await listed.describe()).search_attributes:
        await asyncio.sleep(0.02)
    request = RemoveSearchAttributesRequest(namespace=at.client.namespace, search_attributes=NAMES)
    await at.client.operator_service.remove_search_attributes(request, retry=True)


async def approve(handle: Any, call_id: str) -> None:
    """Approve a call; the server aborts an update whose workflow task it refuses, and people send it again."""
    update_id = uuid.uuid4().hex
    while True:
        with suppress(RPCError):
            await handle.execute_update("decide", {"call_id": call_id, "decision": "approve"}, id=update_id)
            return


async def histories(at: Lab, handle: Any) -> list[Any]:
    """Those of all runs of the chain, the first one first."""
    run_id, chain = handle.first_execution_run_id, []
    while run_id:
        chain.append(await at.client.get_workflow_handle(handle.id, run_id=run_id).fetch_history())
        run_id = chain[-1].events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return chain


def counted(chain: list[Any], kind: str) -> int:
    return sum(event.HasField(kind) for history in chain for event in history.events)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_chain", [False, True], ids=["one run", "continued as new"])
async def test_open_runs_go_on_without_attributes_that_were_removed(
    desk: Lab, monkeypatch: pytest.MonkeyPatch, is_chain: bool
) -> None:
    """What was left out is recorded, so that a replay leaves it out, too."""
    if is_chain:
        monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    ids = ["a", "b", "c", "d"]
    handle = await desk.start([*(Turn(calls=[("refund", REFUND, each)]) for each in ids), DONE], agent="desk")
    await pending(handle)
    await remove_attributes(desk, handle)
    for call_id in ids:
        while [each["call_id"] for each in await pending(handle)] != [call_id]:
            await asyncio.sleep(0.02)
        await approve(handle, call_id)
    ran = await desk.look(handle)
    assert ran.result["status"] == "completed"
    chain = await histories(desk, handle)
    assert (len(chain) > 1) is is_chain
    assert counted(chain, "workflow_task_failed_event_attributes") > 0, "the server refused nothing"
    assert counted(chain, "marker_recorded_event_attributes") > 0
    replayer = Replayer(workflows=[AgentWorkflow], data_converter=data_converter)
    for history in chain:
        await replayer.replay_workflow(history)
