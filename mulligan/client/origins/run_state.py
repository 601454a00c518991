"""Reads the state of a run with which another run begins: that continues it, or is forked from one of its steps."""

from __future__ import annotations

from typing import Any

from temporalio.api.history.v1 import WorkflowExecutionStartedEventAttributes
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError

from mulligan.client.read_run import query_run
from mulligan.client.start_run import Handle, decode_start_input
from mulligan.client.unless_missing import MISSING_OR_INVALID, unless_missing
from mulligan.values import Message
from mulligan.wire.resume_page import RESUME_STATE_QUERY, ForkState, ResumeState
from mulligan.wire.run_context import AGENT_WORKFLOW


class ResumeError(Exception):
    """A run cannot be resumed. The message says why, and what to do."""

    verb = "resumed"
    """What cannot be done with the run."""


class RunNotFoundError(ResumeError):
    """There is no such run on this server. Its retention may be over."""


class RunOpenError(ResumeError):
    """The run has not ended."""


class NoWorkerError(ResumeError):
    """No worker answers for the run. A worker has to replay it to return its conversation."""


class UndoOpenError(ResumeError):
    """A run is being undone, so no run may go on from what it has done. `undo`: the workflow id of that undo."""

    def __init__(self, workflow_id: str, undo: str) -> None:
        super().__init__(f"The run {workflow_id!r} is being undone by {undo!r}; wait until that has ended.")
        self.undo = undo


def first_run_id(described: WorkflowExecutionDescription) -> str:
    """The first workflow run of a chain: a run that has continued as new is the same run."""
    return described.raw_description.workflow_execution_info.first_run_id or described.run_id or ""


async def describe_existing(
    client: Client, workflow_id: str, run_id: str | None = None
) -> WorkflowExecutionDescription:
    """Temporal's description of a run.

    Raises:
        RunNotFoundError: there is no such run.
    """
    described = client.get_workflow_handle(workflow_id, run_id=run_id).describe()
    if (description := await unless_missing(described, MISSING_OR_INVALID)) is None:
        raise RunNotFoundError(f"There is no run {workflow_id!r} on this server.")
    return description


async def describe_ended(
    client: Client, workflow_id: str, run_id: str | None = None, refusal: type[ResumeError] = ResumeError
) -> WorkflowExecutionDescription:
    """Temporal's description of a run of an agent that has ended.

    Raises:
        ResumeError: there is no such run (RunNotFoundError), it is open (RunOpenError), or another workflow (`refusal`).
    """
    described = await describe_existing(client, workflow_id, run_id)
    if described.workflow_type != AGENT_WORKFLOW:
        raise refusal(
            f"{workflow_id!r} is a workflow of type {described.workflow_type}; only runs of {AGENT_WORKFLOW} can be "
            f"{refusal.verb}."
        )
    if described.status == WorkflowExecutionStatus.RUNNING:
        raise RunOpenError(f"The run {workflow_id!r} is open; stop it first: `mulligan stop {workflow_id}`.")
    return described


async def read_run_state(
    client: Client,
    description: WorkflowExecutionDescription,
    at: int | None = None,
    conversation: str | None = None,
    refusal: type[ResumeError] = ResumeError,
) -> tuple[ResumeState, list[Message]]:
    """The state of a run, and all messages of its conversation.

    A run of the chain that ended before a worker began it has none: its state is in the run before it, or, for the first
    run, in its input.

    `at`, `conversation`: as of the query; None for the end of the run. `refusal`: says that there is no such state.

    Raises:
        ResumeError: no worker answers (NoWorkerError), the retention of the run that has the step is over
            (RunNotFoundError), or there is no such state (`refusal`).
    """
    run = client.get_workflow_handle(description.id, run_id=description.run_id)
    messages: list[Message] = []
    since: int | None = 0
    chosen = [] if at is None else [at, conversation]
    while since is not None:
        try:
            page = await unless_missing(_query(run, since, chosen))
        except RPCError as error:
            start = await _read_start_if_unserved(run)
            if start is None:
                raise NoWorkerError(
                    f"The conversation of {run.id!r} cannot be read now: no worker of the task queue "
                    f"{description.task_queue!r} answers ({error.message})."
                ) from None
            if not start.continued_execution_run_id:
                return await _state_of_input(client, start, at, refusal)
            run = client.get_workflow_handle(run.id, run_id=start.continued_execution_run_id)
            continue
        except WorkflowQueryFailedError as error:
            raise refusal(f"The run {run.id!r} cannot be {refusal.verb}: {str(error).rstrip('.')}.") from error
        if page is None:
            raise RunNotFoundError(_missing(run, chosen))
        if not page:
            raise refusal(f"The run {run.id!r} never began: its input was refused. Start another one.")
        state = ResumeState.model_validate(page)
        if chosen:
            chosen[0] = state.step  # the newest step of an open run may be another one for the next page
        if state.earlier is not None:
            run = client.get_workflow_handle(state.earlier.get("id", run.id), run_id=state.earlier["run_id"])
            chosen[1] = state.earlier.get("conversation", chosen[1])
            continue
        messages += state.messages
        since = state.next
    return state, messages


def _missing(run: Handle, chosen: list[Any]) -> str:
    if not chosen or not chosen[0]:
        return f"There is no run {run.id!r} on this server."
    where = f"Step {chosen[0]} lies in the workflow run {run.run_id!r} of {run.id!r}"
    return f"{where}, whose retention is over; choose a later step."


async def _query(run: Handle, since: int, chosen: list[Any]) -> Any:
    """The page; {} where the run never began."""
    return await query_run(run, RESUME_STATE_QUERY, since, *chosen) or {}


async def _state_of_input(
    client: Client, start: WorkflowExecutionStartedEventAttributes, at: int | None, refusal: type[ResumeError]
) -> tuple[ResumeState, list[Message]]:
    """The state of a run that no worker began: its input, and the messages in it."""
    if at is not None and at > 1:
        raise refusal(f"There is no step {at}: no worker has begun the run.")
    run_input = await decode_start_input(client, start)
    carried = {"once": run_input.carried.once, "foreign_results": run_input.carried.foreign_results}
    state = ResumeState(input=run_input.for_other_run.with_fields(**carried))
    if at is not None:
        state.fork = ForkState(step=1, conversation={}, key="0", steps=0, model="")
    return state, run_input.new_messages


async def _read_start_if_unserved(earlier: Handle) -> WorkflowExecutionStartedEventAttributes | None:
    """The start event of a run that ended before any worker began it: no query can read it. None: a worker began it."""
    started = None
    async for event in earlier.fetch_history_events():
        if event.HasField("workflow_task_completed_event_attributes"):
            return None
        if event.HasField("workflow_execution_started_event_attributes"):
            started = event.workflow_execution_started_event_attributes
    return started
