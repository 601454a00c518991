"""Continue an ended run: start a new one with its conversation, without repeating calls that have a result."""

from __future__ import annotations

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

from mulligan.client.read_run import query_run
from mulligan.client.start_run import decode_start_input, start_argument, start_memo
from mulligan.client.store_content import store_content
from mulligan.content import Part
from mulligan.errors import MulliganError, StructuredOutputError, ToolCallError, error_of
from mulligan.run_input import ResumedFrom, parse_prompt
from mulligan.values import (
    AssistantMessage,
    ErrorInfo,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from mulligan.wire.resume_page import RESUME_STATE_QUERY, ResumeState
from mulligan.wire.run_priority import run_priority
from mulligan.wire.ui_summary import run_summary, task_of

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
Handle = WorkflowHandle[Any, Any]
_RESUMED_ID = re.compile(r"(.+)-resumed(?:-(\d+))?")


class ResumeError(Exception):
    """A run cannot be resumed. The message says why, and what to do."""


class RunNotFoundError(ResumeError):
    """There is no such run on this server. Its retention may be over."""


class RunOpenError(ResumeError):
    """The run has not ended."""


class PromptNeededError(ResumeError):
    """The agent has nothing to do without a prompt."""


class NoWorkerError(ResumeError):
    """No worker answers for the run. A worker has to replay it to return its conversation."""


async def resume_run(  # noqa: PLR0913 - all but the first two are options
    client: Client,
    workflow_id: str,
    prompt: str | Sequence[Part] | None = None,
    *,
    id: str | None = None,  # noqa: A002 - Temporal's name
    run_id: str | None = None,
    max_steps: int | None = None,
    model: str | None = None,
    metadata: Mapping[str, str] | None = None,
    task_queue: str | None = None,
) -> Handle:
    """Start a run that continues the conversation of one that failed, was cancelled or stopped, or reached a limit.

    Calls with a result are not repeated. A call that was interrupted is not repeated either: the model gets the error
    `tool_lost`, which says that the call may or may not have done its work. Agent, model, metadata, limits and task queue
    are those of the earlier run, unless given.

    Args:
        client: A client of the server that has the earlier run; `mulligan.connect()` returns one.
        workflow_id: The earlier run.
        prompt: The user's next message. A run that completed needs one.
        id: The new run's id. The default is made from the earlier run's id and can be used once, so that a run which is
            resumed twice by accident continues once.
        run_id: Temporal's run id, if the earlier run is not the newest one of its workflow id.
        max_steps: The maximum number of model calls of the new run.
        model: Another model.
        metadata: Another metadata than the earlier run's.
        task_queue: The task queue of the workers.

    Returns:
        The handle of the new run.

    Raises:
        ResumeError: there is no such run (RunNotFoundError), it is open (RunOpenError), it needs a prompt
            (PromptNeededError), no worker answers (NoWorkerError), or it never started.
        InvalidRunInputError: the new run's input is invalid: the conversation is too long, or a limit is not a number.
        WorkflowAlreadyStartedError: there is a run with the new id.
    """
    description = await _describe_ended_run(client, workflow_id, run_id)
    earlier = client.get_workflow_handle(workflow_id, run_id=description.run_id)
    status, error = await _read_end(earlier)
    state, messages = await _read_state(client, earlier, description)
    messages = _with_all_results(messages, error, state.undecided)
    if prompt is None:
        _check_last_message(workflow_id, status, messages)
    options = {
        "prompt": prompt if prompt is None or isinstance(prompt, str) else parse_prompt(list(prompt)),
        "max_steps": max_steps,
        "model": model,
        "metadata": metadata and dict(metadata),
    }
    run_input = state.input.model_copy(
        update={
            "messages": messages,
            "traceparent": None,
            "resumed_from": ResumedFrom(
                workflow_id=workflow_id,
                run_id=description.run_id or "",
                traceparent=state.trace or None,
                once=state.once,
            ),
            **{name: value for name, value in options.items() if value is not None},
        }
    )
    run_input = await store_content(run_input)
    return await client.start_workflow(
        WORKFLOW,
        start_argument(client, run_input),
        id=id or default_workflow_id(workflow_id),
        task_queue=task_queue or description.task_queue,
        static_summary=run_summary(run_input.agent, task_of(run_input)),
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE if id else WorkflowIDReusePolicy.REJECT_DUPLICATE,
        memo=start_memo(run_input),
        priority=run_priority(run_input),
    )


def default_workflow_id(workflow_id: str) -> str:
    """The id of the run that resumes another: `my-run-resumed`, then `my-run-resumed-2`."""
    match = _RESUMED_ID.fullmatch(workflow_id)
    return f"{match[1]}-resumed-{int(match[2] or 1) + 1}" if match else f"{workflow_id}-resumed"


def _check_last_message(workflow_id: str, status: str, messages: Sequence[Message]) -> None:
    """Raise PromptNeededError if the model would have nothing to reply to."""
    last = messages[-1] if messages else None
    if isinstance(last, UserMessage):
        return
    if status == "completed":
        raise PromptNeededError(f"The run {workflow_id!r} has completed; give the agent's next task as a prompt.")
    if isinstance(last, AssistantMessage):
        raise PromptNeededError(f"The run {workflow_id!r} ended with a message of the model; give the next prompt.")


async def _describe_ended_run(client: Client, workflow_id: str, run_id: str | None) -> WorkflowExecutionDescription:
    """The description of a run that can be resumed; for any other it raises a ResumeError."""
    try:
        description = await client.get_workflow_handle(workflow_id, run_id=run_id).describe()
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            raise RunNotFoundError(f"There is no run {workflow_id!r} on this server.") from None
        raise
    if description.workflow_type != WORKFLOW:
        raise ResumeError(
            f"{workflow_id!r} is a workflow of type {description.workflow_type}; only runs of {WORKFLOW} can be resumed."
        )
    if description.status == WorkflowExecutionStatus.RUNNING:
        raise RunOpenError(f"The run {workflow_id!r} is open; stop it first: `mulligan stop {workflow_id}`.")
    if description.status == WorkflowExecutionStatus.CONTINUED_AS_NEW:
        raise ResumeError(f"The run {workflow_id!r} continued in a newer run with this id; resume that one.")
    return description


async def _read_end(earlier: Handle) -> tuple[str, MulliganError | None]:
    """The status of a run that has ended, and the typed error that it failed with."""
    try:
        result = await earlier.result(follow_runs=False)
    except WorkflowFailureError as failure:
        return "failed", error_of(failure)
    return (str(result.get("status", "completed")) if isinstance(result, dict) else "completed"), None


async def _read_state(
    client: Client, earlier: Handle, description: WorkflowExecutionDescription
) -> tuple[ResumeState, list[Message]]:
    """The state that a run left, and all messages of its conversation.

    A run of the chain that ended before a worker began it has none: its state is in the run before it, or, for the first
    run, in its input.
    """
    messages: list[Message] = []
    since: int | None = 0
    while since is not None:
        try:
            page = await query_run(earlier, RESUME_STATE_QUERY, since)
        except RPCError as error:
            start = await _read_start_if_unserved(earlier)
            if start is None:
                raise NoWorkerError(
                    f"The conversation of {earlier.id!r} cannot be read now: no worker of the task queue "
                    f"{description.task_queue!r} answers ({error.message})."
                ) from None
            if not start.continued_execution_run_id:
                return await _state_of_input(client, start)
            earlier = client.get_workflow_handle(earlier.id, run_id=start.continued_execution_run_id)
            continue
        except WorkflowQueryFailedError as error:
            raise ResumeError(f"The conversation of {earlier.id!r} cannot be read: {error}.") from error
        if page is None:
            raise ResumeError(f"The run {earlier.id!r} never began: its input was refused. Start another one.")
        state = ResumeState.model_validate(page)
        messages += state.messages
        since = state.next
    return state, messages


async def _state_of_input(
    client: Client, start: WorkflowExecutionStartedEventAttributes
) -> tuple[ResumeState, list[Message]]:
    """The state of a run that no worker began: its input, and the messages in it."""
    run_input = await decode_start_input(client, start)
    once = run_input.resumed_from.once if run_input.resumed_from else []
    state = ResumeState(input=run_input.model_copy(update={"prompt": None}), once=once)
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


def _with_all_results(messages: list[Message], error: MulliganError | None, undecided: Sequence[str]) -> list[Message]:
    """The messages, with a result for each call of the last step, in the order of the calls."""
    last = next((n for n in reversed(range(len(messages))) if isinstance(messages[n], AssistantMessage)), None)
    answer = messages[last] if last is not None else None
    if last is None or not isinstance(answer, AssistantMessage):
        return messages
    results = {message.call_id: message for message in messages[last:] if isinstance(message, ToolMessage)}
    other = [message for message in messages[last + 1 :] if not isinstance(message, ToolMessage)]
    feedback: list[Message] = [
        results.get(call.id) or _missing_result(call, error, is_undecided=call.id in undecided)
        for call in answer.tool_calls
    ]
    if not feedback and isinstance(error, StructuredOutputError):
        feedback = [UserMessage(role="user", text=error.message)]
    return [*messages[: last + 1], *feedback, *other]


def _missing_result(call: ToolCall, error: MulliganError | None, *, is_undecided: bool) -> ToolMessage:
    """The result of a call without one. For the call that made the run fail, it is the error of the run."""
    names = [getattr(error, "tool_name", None), *getattr(error, "tool_names", ())]
    is_failed_call = error.call_id == call.id if isinstance(error, ToolCallError) else call.name in names
    if is_failed_call and error is not None:
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
