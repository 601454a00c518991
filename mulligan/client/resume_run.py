"""Going on from a run that has ended: another one is started with its conversation, and nothing is done twice."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from temporalio.api.history.v1 import WorkflowExecutionStartedEventAttributes
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client.external_storage import CARRY_BYTES
from mulligan.client.read_run import query_run
from mulligan.errors import MulliganError, StructuredOutputError, ToolCallError, error_of
from mulligan.run_input import ResumedFrom, parse_run_input
from mulligan.values import (
    AssistantMessage,
    ErrorInfo,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from mulligan.wire.compressed_input import LONGEST_MESSAGE, PACKED_BYTES, compress_input, decompress_input
from mulligan.wire.resume_page import RESUME_STATE_QUERY, ResumeState

__all__ = [
    "NoWorkerError",
    "PromptNeededError",
    "ResumeError",
    "RunNotFoundError",
    "RunOpenError",
    "default_workflow_id",
    "resume_run",
]

WORKFLOW = "AgentWorkflow"
_NAMED = re.compile(r"(.+)-resumed(?:-(\d+))?")


class ResumeError(Exception):
    """A run cannot be gone on from. The message says why, and what to do."""


class RunNotFoundError(ResumeError):
    """There is no such run on this server; its retention may be over."""


class RunOpenError(ResumeError):
    """The run has not ended."""


class PromptNeededError(ResumeError):
    """The agent has nothing left to do unless it is told what."""


class NoWorkerError(ResumeError):
    """No worker answers for the run: what it left is read by replaying it."""


async def resume_run(
    client: Client,
    workflow_id: str,
    prompt: str | None = None,
    *,
    id: str | None = None,  # noqa: A002 - Temporal's name
    run_id: str | None = None,
    max_steps: int | None = None,
    model: str | None = None,
    metadata: Mapping[str, str] | None = None,
    task_queue: str | None = None,
) -> WorkflowHandle[Any, Any]:
    """Start a run that goes on with the conversation of one that failed, was ended, or ran out of something.

    Calls that have a result are not made again. One that was cut off is not either: the model is told that it may or may
    not have done its work (`tool_lost`). Agent, model, metadata, limits and task queue are the earlier run's, unless given.

    Args:
        client: A client of the server that has the earlier run; `mulligan.connect()` gives one.
        workflow_id: The earlier run.
        prompt: What the user says next. A run that completed needs one.
        id: The new run's id. By default one made of the earlier run's, which can be used once: so a run that is resumed
            twice by accident goes on once.
        run_id: Temporal's run id, where it is not the newest run of that id.
        max_steps: How many model calls the new run may make.
        model: Another model.
        metadata: Another metadata than the earlier run's.
        task_queue: Where it is served.

    Returns:
        The handle of the new run.

    Raises:
        ResumeError: there is no such run (RunNotFoundError), it is open (RunOpenError), needs a prompt
            (PromptNeededError), no worker answers (NoWorkerError), or it left nothing to go on with.
        InvalidRunInputError: what it is to go on with cannot be a run's input: too long, or no number of steps.
        WorkflowAlreadyStartedError: there is a run of the new id.
    """
    described = await _described(client, workflow_id, run_id)
    earlier = client.get_workflow_handle(workflow_id, run_id=described.run_id)
    status, error = await _end(earlier)
    left, messages = await _left(client, earlier, described)
    messages = _answered(messages, error, left.undecided)
    is_asked = prompt is not None or (bool(messages) and isinstance(messages[-1], UserMessage))
    if status == "completed" and not is_asked:
        raise PromptNeededError(f"The run {workflow_id!r} has completed; say what the agent is to do next.")
    if not is_asked and messages and isinstance(messages[-1], AssistantMessage):
        raise PromptNeededError(f"The run {workflow_id!r} ended with the model's own words; say what it is to do next.")
    told = {"prompt": prompt, "max_steps": max_steps, "model": model, "metadata": metadata and dict(metadata)}
    run_input = left.input.model_copy(
        update={
            "messages": messages,
            "traceparent": None,
            "resumed_from": ResumedFrom(
                workflow_id=workflow_id, run_id=described.run_id or "", traceparent=left.trace or None
            ),
            **{name: value for name, value in told.items() if value is not None},
        }
    )
    is_stored = client.data_converter.external_storage is not None
    start = compress_input(
        parse_run_input(run_input.model_dump_json().encode()),
        most=CARRY_BYTES if is_stored else PACKED_BYTES,
        longest_message=None if is_stored else LONGEST_MESSAGE,
    )
    reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE if id else WorkflowIDReusePolicy.REJECT_DUPLICATE
    return await client.start_workflow(
        WORKFLOW,
        start,
        id=id or default_workflow_id(workflow_id),
        task_queue=task_queue or described.task_queue,
        id_reuse_policy=reuse,
    )


def default_workflow_id(workflow_id: str) -> str:
    """The id of the run that goes on from one: `my-run-resumed`, then `my-run-resumed-2`."""
    named = _NAMED.fullmatch(workflow_id)
    return f"{named[1]}-resumed-{int(named[2] or 1) + 1}" if named else f"{workflow_id}-resumed"


async def _described(client: Client, workflow_id: str, run_id: str | None) -> WorkflowExecutionDescription:
    """The run, if it is one that can be gone on from."""
    try:
        found = await client.get_workflow_handle(workflow_id, run_id=run_id).describe()
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            raise RunNotFoundError(f"There is no run {workflow_id!r} on this server.") from None
        raise
    if found.workflow_type != WORKFLOW:
        raise ResumeError(
            f"{workflow_id!r} is a workflow of the type {found.workflow_type}; only runs of {WORKFLOW} can be resumed."
        )
    if found.status == WorkflowExecutionStatus.RUNNING:
        raise RunOpenError(f"The run {workflow_id!r} is open; stop it first: `mulligan stop {workflow_id}`.")
    if found.status == WorkflowExecutionStatus.CONTINUED_AS_NEW:
        raise ResumeError(f"The run {workflow_id!r} went on in a newer run of this id; resume that one.")
    return found


async def _end(earlier: WorkflowHandle[Any, Any]) -> tuple[str, MulliganError | None]:
    """The status of a run that has ended, and the typed error that it failed with."""
    try:
        result = await earlier.result(follow_runs=False)
    except WorkflowFailureError as failure:
        return "failed", error_of(failure)
    return (str(result.get("status", "completed")) if isinstance(result, dict) else "completed"), None


async def _left(
    client: Client, earlier: WorkflowHandle[Any, Any], described: WorkflowExecutionDescription
) -> tuple[ResumeState, list[Message]]:
    """What a run left, and all of its messages that the model was sent last."""
    messages: list[Message] = []
    since: int | None = 0
    while since is not None:
        try:
            answer = await query_run(earlier, RESUME_STATE_QUERY, since)
        except RPCError as error:
            first = await _first_event(earlier)
            if first is None:
                raise NoWorkerError(
                    f"What {earlier.id!r} left cannot be read now: no worker that serves the task queue "
                    f"{described.task_queue!r} answers ({error.message})."
                ) from None
            if not first.continued_execution_run_id:
                [given] = await client.data_converter.decode(first.input.payloads) or [b""]
                data = decompress_input(given) if isinstance(given, bytes) else json.dumps(given).encode()
                run_input = parse_run_input(data)
                prompt = [UserMessage(role="user", text=run_input.prompt)] if run_input.prompt is not None else []
                return ResumeState(input=run_input.model_copy(update={"prompt": None})), [*run_input.messages, *prompt]
            earlier = client.get_workflow_handle(earlier.id, run_id=first.continued_execution_run_id)
            continue
        except WorkflowQueryFailedError as error:
            raise ResumeError(f"What {earlier.id!r} left cannot be read: {error}.") from error
        if answer is None:
            raise ResumeError(f"The run {earlier.id!r} never began: its input was refused. Start another one.")
        left = ResumeState.model_validate(answer)
        messages += left.messages
        since = left.next
    return left, messages


async def _first_event(earlier: WorkflowHandle[Any, Any]) -> WorkflowExecutionStartedEventAttributes | None:
    """How a run was started that ended before any worker took it, which no query can be asked of; None: it was taken."""
    started = None
    async for event in earlier.fetch_history_events():
        if event.HasField("workflow_task_completed_event_attributes"):
            return None
        if event.HasField("workflow_execution_started_event_attributes"):
            started = event.workflow_execution_started_event_attributes
    return started


def _answered(messages: list[Message], error: MulliganError | None, undecided: Sequence[str]) -> list[Message]:
    """The messages with a result for each call of the last step, in the order of the calls."""
    at = next((n for n in reversed(range(len(messages))) if isinstance(messages[n], AssistantMessage)), None)
    said = messages[at] if at is not None else None
    if at is None or not isinstance(said, AssistantMessage):
        return messages
    results = {message.call_id: message for message in messages[at:] if isinstance(message, ToolMessage)}
    since = [message for message in messages[at + 1 :] if not isinstance(message, ToolMessage)]
    told: list[Message] = [
        results.get(call.id) or _cut_off(call, error, is_undecided=call.id in undecided) for call in said.tool_calls
    ]
    if not told and isinstance(error, StructuredOutputError):
        told = [UserMessage(role="user", text=error.message)]
    return [*messages[: at + 1], *told, *since]


def _cut_off(call: ToolCall, error: MulliganError | None, *, is_undecided: bool) -> ToolMessage:
    """The result of a call that has none: of the one that failed the run, why it did."""
    names = [getattr(error, "tool_name", None), *getattr(error, "tool_names", ())]
    is_at_fault = error.call_id == call.id if isinstance(error, ToolCallError) else call.name in names
    if is_at_fault and error is not None:
        kind, text = str(getattr(error, "kind", "")) or "tool_exception", error.message
    elif is_undecided:
        kind = "denied"
        text = f"`{call.name}` was not run: nobody had decided on it when the run ended. Call it again if it is needed."
    else:
        kind = "tool_lost"
        text = (
            f"The call of `{call.name}` was cut off: the run ended before its result was known. It may or may not have "
            "done its work; find out before you make it again."
        )
    return ToolMessage(
        role="tool", call_id=call.id, name=call.name, text=text, error=ErrorInfo(kind=kind, message=text)
    )
