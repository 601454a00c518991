"""Reads the events of a run, of its agents, and of the runs of its sub-agents, and makes spans of them."""

from __future__ import annotations

from typing import Any

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.service import RPCError

from mulligan.client.follow_events import EventFollower
from mulligan.client.read_run import NO_WORKER_STATUSES, query_run
from mulligan.client.unless_missing import unless_missing
from mulligan.run_view.run_view import RunView
from mulligan.trace_view.run_spans import ReadRun, spans_of
from mulligan.trace_view.trace_span import TraceSpan
from mulligan.wire.run_context import AGENT_WORKFLOW


class NoReadingError(Exception):
    """The run's events cannot be read now. The message says why."""


async def read_spans(
    client: Client, workflow_id: str, trace_id: str, *, parent: str = "", call_id: str | None = None
) -> list[TraceSpan]:
    """The spans of a run and of the runs below it, but for those of sub-agents whose runs cannot be read.

    Args:
        client: A client of the run's server.
        workflow_id: The run.
        trace_id: The trace of all of them.
        parent: The traceparent of the parent of the span of the call that has started it; "": none has.
        call_id: The id of that call.

    Raises:
        NoReadingError: no worker answers for an open run, or the workflow has no events.
    """
    found: list[TraceSpan] = []
    try:
        description = await client.get_workflow_handle(workflow_id).describe()
        for conversation in await _conversations(client, description):
            follower = EventFollower(client, workflow_id, "", 1, conversation)
            ids: dict[str, Any] = {
                "workflow_id": workflow_id,
                "run_id": description.run_id,
                "first_run_id": description.raw_info.first_run_id or description.run_id,
                "workflow_type": description.workflow_type,
            }
            run = ReadRun(
                view=await _view(follower, description),
                trace_id=trace_id,
                conversation=conversation or "0",
                parent=parent,
                call_id=call_id,
                **ids,
            )
            found += spans_of(run)
            found += await _below(client, run, follower)
    except RPCError as error:
        if error.status not in NO_WORKER_STATUSES:
            raise
        raise NoReadingError("no worker of the run answers") from error
    except WorkflowQueryFailedError as error:
        raise NoReadingError("the workflow does not answer the query for its events") from error
    return found


async def _conversations(client: Client, description: WorkflowExecutionDescription) -> list[str | None]:
    """The numbers of the workflow's agents; None: its only one."""
    if description.workflow_type == AGENT_WORKFLOW:
        return [None]
    progress = await query_run(client.get_workflow_handle(description.id), "progress")
    return [str(each["conversation"]) for each in progress.get("conversations") or []] or [None]


async def _view(follower: EventFollower, description: WorkflowExecutionDescription) -> RunView:
    view = RunView()
    async for event in follower.stored_events():
        view.add(event)
    if description.status != WorkflowExecutionStatus.RUNNING and not await follower.end_was_yielded():
        view.add(await follower.end_event(description))
    return view


async def _below(client: Client, run: ReadRun, follower: EventFollower) -> list[TraceSpan]:
    """The spans of the runs that its calls have started."""
    runs: dict[str, Any] = {each["call_id"]: each["id"] for each in follower.sub_runs}
    for step in run.view.steps.values():
        runs |= {call.id: call.run.id for call in step.calls.values() if call.run is not None and call.run.run_id}
    found: list[TraceSpan] = []
    for call_id, workflow_id in runs.items():
        reading = read_spans(client, workflow_id, run.trace_id, parent=run.parents.get(call_id, ""), call_id=call_id)
        try:
            found += await unless_missing(reading) or []
        except NoReadingError:
            continue  # the span of its call is there
    return found
