"""What Temporal's history holds of a run: its activities over the whole chain of continue-as-new.

No worker is asked: history is there when none runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from mulligan.trace_view.history_events import Execution, Reader, seconds
from mulligan.wire.agent_facts import OpenedRun
from mulligan.wire.model_call import ModelCall
from mulligan.wire.tool_call import CallTool

__all__ = ["ChainSize", "chain", "size_of_chain", "trace_of"]

Handle = WorkflowHandle[Any, Any]


async def trace_of(client: Client, handle: Handle) -> str:
    """The W3C traceparent of a run's first agent; "" where none was opened yet. Reads no more of history than it must.

    Raises:
        Unreadable: it cannot be decoded.
    """
    reader = Reader(client.data_converter, Execution(handle.id, handle.run_id or ""))
    async for event in handle.fetch_history_events(page_size=30):
        done = await reader.read(event)
        if done is not None and isinstance(done.outcome, OpenedRun):
            return done.outcome.trace
        if done is not None and isinstance(done.order, (ModelCall, CallTool)):
            return done.order.where.trace
    return ""


@dataclass(frozen=True)
class ChainSize:
    """How large the history of a run is, in all workflow runs that it continued as; those beyond retention are left out."""

    runs: int
    events: int
    bytes: int


async def size_of_chain(client: Client, workflow_id: str) -> ChainSize:
    """The size of a run's whole history, hand-overs included, as the server counts it."""
    run_id = (await client.get_workflow_handle(workflow_id).describe()).run_id
    runs = events = size = 0
    while run_id:
        try:
            description = await client.get_workflow_handle(workflow_id, run_id=run_id).describe()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            break
        info = description.raw_description.workflow_execution_info
        runs, events, size = runs + 1, events + info.history_length, size + info.history_size_bytes
        run_id = await _continued_from(client, workflow_id, run_id)
    return ChainSize(runs, events, size)


async def chain(client: Client, workflow_id: str, run_id: str = "") -> list[Execution]:
    """The workflow runs that one run of an agent went through, the first one first. Those beyond retention are left out.

    With a `run_id`: the chain that it belongs to, or, where the workflow id was used again since, it alone.

    Raises:
        Unreadable: a payload cannot be decoded.
    """
    handle = client.get_workflow_handle(workflow_id)
    description = await handle.describe()
    run_ids = [description.run_id]
    while before := await _continued_from(client, workflow_id, run_ids[-1]):
        run_ids.append(before)
    if run_id and run_id not in run_ids:
        return [await _read(client, workflow_id, run_id)]
    executions = []
    for one in reversed(run_ids):
        try:
            executions.append(await _read(client, workflow_id, one))
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
    if executions and executions[-1].closed is None:
        await _see_pending(client, executions[-1], description.raw_description.pending_activities)
    return executions


async def _continued_from(client: Client, workflow_id: str, run_id: str) -> str:
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    try:
        async for event in handle.fetch_history_events(page_size=1):
            return event.workflow_execution_started_event_attributes.continued_execution_run_id
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
    return ""


async def _read(client: Client, workflow_id: str, run_id: str) -> Execution:
    execution = Execution(workflow_id, run_id)
    reader = Reader(client.data_converter, execution)
    async for event in client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history_events():
        await reader.read(event)
    return execution


async def _see_pending(client: Client, execution: Execution, pending: Iterable[PendingActivityInfo]) -> None:
    """What history says only when an activity ends: which attempt it is at, since when, and what went wrong before."""
    running = {activity.sequence: activity for activity in execution.activities if activity.ended is None}
    for info in pending:
        # The SDK's activity ids count up in a workflow: that is how both sides know an activity.
        activity = running.get(int(info.activity_id) if info.activity_id.isdigit() else -1)
        if activity is None:
            continue
        activity.attempt = info.attempt
        if info.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
            activity.started = seconds(info.last_started_time)
        else:
            activity.waits = "waits for a worker" if info.attempt <= 1 else f"attempt {info.attempt} follows"
        if info.HasField("last_failure"):
            activity.failure = await Reader(client.data_converter, execution).failure(info.last_failure)
