"""Parts of batches alone, on a real server: the collector holds no more than it can carry; answers reach their runs."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any, cast

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Worker

from mulligan.activities.batch.submit_batch import SIGNALS, SubmitBatchActivities
from mulligan.values import ErrorInfo
from mulligan.wire.batch import (
    ADD_CALL,
    BATCH_ANSWERED,
    BATCH_COLLECTOR,
    BATCH_WORKFLOW,
    AddCall,
    BatchedCall,
    CollectorState,
    DeliverBatch,
    GatherLimits,
)
from mulligan.workflows import limits
from mulligan.workflows.batch.batch_collector import BatchCollector
from mulligan.workflows.batch.batch_workflow import BatchWorkflow
from tests.support.lab import Lab

if TYPE_CHECKING:
    from mulligan.activities.services import Services

ROOMY = GatherLimits(count=50_000, bytes=200_000_000, seconds=3_600, poll=30)


async def test_a_list_that_is_too_long_for_one_input_is_a_full_file(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a collector with large limits fails when it continues as new, and all of its runs wait for ever."""
    monkeypatch.setattr(limits, "COLLECTOR_SIGNALS", 30)
    queue = f"collector-{uuid.uuid4().hex[:6]}"
    handle = await lab.client.start_workflow(
        BATCH_COLLECTOR,
        CollectorState(model="openai:m"),
        id=queue,
        task_queue=queue,
    )
    # They arrive together, before a worker is there. Each is 100 KB in the list, so all of them are 3 MB.
    for number in range(30):
        call = BatchedCall(key=f"{number}", ref="r", size=10, workflow_id="w" * 100_000)
        await handle.signal(ADD_CALL, AddCall(call=call, limits=ROOMY))
    async with Worker(lab.client, task_queue=queue, workflows=[BatchCollector, BatchWorkflow]):
        state: Any = None
        while (
            description := await lab.client.get_workflow_handle(queue).describe()
        ).run_id == handle.first_execution_run_id:
            assert description.status != WorkflowExecutionStatus.FAILED
            assert description.status != WorkflowExecutionStatus.TERMINATED
            await asyncio.sleep(0.1)
    assert description.status == WorkflowExecutionStatus.RUNNING
    async for event in lab.client.get_workflow_handle(queue, run_id=description.run_id).fetch_history_events():
        [state] = await lab.client.data_converter.decode(
            event.workflow_execution_started_event_attributes.input.payloads, [CollectorState]
        )
        break
    submitted = 0
    first = lab.client.get_workflow_handle(queue, run_id=handle.first_execution_run_id)
    async for event in first.fetch_history_events():
        started = event.start_child_workflow_execution_initiated_event_attributes
        submitted += started.workflow_type.name == BATCH_WORKFLOW
    assert submitted >= 2
    assert len(state.calls) < 10


async def test_a_run_that_takes_no_signal_does_not_hold_up_the_answers_of_others(lab: Lab) -> None:
    """Of more runs than are sent their answers at the same time, the first one is refused by the server."""
    handle = await lab.client.start_workflow("AgentWorkflow", {}, id=f"w-{uuid.uuid4().hex}", task_queue="nobody")
    ids = ["", *[f"ended-{number}" for number in range(SIGNALS)], handle.id]
    calls = [BatchedCall(key=str(n), ref="r", size=1, workflow_id=each) for n, each in enumerate(ids)]
    activities = SubmitBatchActivities(cast("Services", None))
    error = ErrorInfo(kind="ModelRequestError", message="refused")
    delivered = DeliverBatch(model="openai:m", calls=calls, error=error, status=400)
    assert await ActivityEnvironment(lab.client).run(activities.deliver_batch, delivered) == 0
    names = [
        event.workflow_execution_signaled_event_attributes.signal_name async for event in handle.fetch_history_events()
    ]
    assert BATCH_ANSWERED in names
    await handle.terminate()
