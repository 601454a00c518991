"""Fetches the history of a run, over the whole chain of continue-as-new, and those of its sub-agents' runs.

It needs the server only, no worker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowHandle

from mulligan.client.start_run import run_before
from mulligan.client.unless_missing import unless_missing
from mulligan.trace_view.history_events import OF_TRACE, Execution, Reader, Types, seconds
from mulligan.wire.agent_facts import OpenedRun
from mulligan.wire.model_call import ModelCall
from mulligan.wire.tool_call import CallTool

Handle = WorkflowHandle[Any, Any]


async def trace_of(client: Client, handle: Handle) -> str:
    """The W3C traceparent of a run's first agent; "" if no agent was opened yet. Reads history only until it is found.

    Raises:
        Unreadable: the history cannot be decoded.
    """
    reader = Reader(client.data_converter, Execution(handle.id, handle.run_id or ""))
    async for event in handle.fetch_history_events(page_size=30):
        activity = await reader.read(event)
        if activity is not None and isinstance(activity.outcome, OpenedRun):
            return activity.outcome.trace
        if activity is not None and isinstance(activity.request, (ModelCall, CallTool)):
            return activity.request.where.trace
    return ""


@dataclass(frozen=True)
class ChainSize:
    """The size of a run's history over all its workflow runs, but for those that the server has deleted."""

    runs: int
    events: int
    bytes: int


async def size_of_chain(client: Client, workflow_id: str) -> ChainSize:
    """The size of a run's whole history, as the server counts it."""
    run_id = (await client.get_workflow_handle(workflow_id).describe()).run_id
    runs = events = size = 0
    while run_id:
        description = await unless_missing(client.get_workflow_handle(workflow_id, run_id=run_id).describe())
        if description is None:
            break
        info = description.raw_description.workflow_execution_info
        runs, events, size = runs + 1, events + info.history_length, size + info.history_size_bytes
        run_id = await run_before(client, workflow_id, run_id)
    return ChainSize(runs, events, size)


async def chain(client: Client, workflow_id: str, run_id: str = "") -> list[Execution]:
    """The workflow runs of one run of an agent, the first one first, but for those that the server has deleted.

    With a `run_id`: the chain that contains it; only that workflow run if the workflow id has been used again since.

    Raises:
        Unreadable: a payload cannot be decoded.
    """
    handle = client.get_workflow_handle(workflow_id)
    description = await handle.describe()
    executions = [each async for each in runs_back(client, workflow_id, description.run_id)]
    if run_id and run_id not in [each.run_id for each in executions]:
        return [await _read(client, workflow_id, run_id)]
    executions.reverse()
    if executions and executions[-1].closed is None:
        await _add_pending(client, executions[-1], description.raw_description.pending_activities)
    return executions


async def chains_with_sub_agents(client: Client, workflow_id: str, run_id: str = "") -> list[list[Execution]]:
    """The chain of a run, and those of its sub-agents' runs at any depth, but for those that the server has deleted.

    Raises:
        Unreadable: a payload cannot be decoded.
    """
    own = chain(client, workflow_id, run_id)
    executions = await (unless_missing(own) if run_id else own)
    if executions is None:
        return []
    chains = [executions]
    for execution in chains[0]:
        for child in execution.children:
            chains += await chains_with_sub_agents(client, *child)
    return chains


async def runs_back(client: Client, workflow_id: str, run_id: str, types: Types = OF_TRACE) -> AsyncIterator[Execution]:
    """The workflow runs of a chain from this one back to the first, up to one that the server has deleted.

    Args:
        client: A client of the run's server.
        workflow_id: The run.
        run_id: The workflow run.
        types: The activities that are read.

    Raises:
        RPCError: Temporal does not answer.
        Unreadable: a payload cannot be decoded.
    """
    while run_id:
        execution = await unless_missing(_read(client, workflow_id, run_id, types))
        if execution is None:
            return
        yield execution
        run_id = execution.continued_from


async def _read(client: Client, workflow_id: str, run_id: str, types: Types = OF_TRACE) -> Execution:
    execution = Execution(workflow_id, run_id)
    reader = Reader(client.data_converter, execution, types)
    async for event in client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history_events():
        await reader.read(event)
    return execution


async def _add_pending(client: Client, execution: Execution, pending: Iterable[PendingActivityInfo]) -> None:
    """Add what history contains only once an activity has ended: its attempt, since when, and its last failure."""
    running = {activity.sequence: activity for activity in execution.activities if activity.ended is None}
    for info in pending:
        # The SDK's activity ids count up in a workflow run, so they identify the activity in both places.
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
