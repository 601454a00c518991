"""How a run's activities are scheduled, and what it means when one does not come back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.exceptions import ActivityError, TimeoutError, TimeoutType, is_cancelled_exception

from mulligan.errors import ModelUnavailableError, error_of
from mulligan.run_input import RunInput
from mulligan.values import ErrorInfo
from mulligan.wire.agent_facts import OPEN_RUN, AgentFacts, OpenedRun, OpenRun, ToolFacts
from mulligan.wire.compaction_request import COMPACT_CONVERSATION, CompactConversation, Compacted
from mulligan.wire.model_call import CALL_MODEL, ConversationRequest, ModelAnswer, ModelCall
from mulligan.wire.run_context import TRACE_HEADER
from mulligan.wire.run_end import FINISH_RUN, FinishRun
from mulligan.wire.sub_run import CALL_MEMO
from mulligan.wire.tool_call import CALL_TOOL, RECORD_LOST_CALL, CallTool, LostCall, ToolOutcome
from mulligan.wire.updates import CHECK_EDIT, RECORD_DECISION, CheckedEdit, CheckEdit, RecordDecision, RecordedDecision
from mulligan.workflows import limits
from mulligan.workflows.people.inbox import Inbox

Answer = TypeVar("Answer", ModelAnswer, Compacted)
_UNKNOWN_TOOL = ToolFacts(timeout=60)


async def open_run(run_input: RunInput, *, small: bool, conversation: str, turn: int) -> OpenedRun:
    """Resolve the agent on a worker, pin its facts, open the trace.

    Raises:
        InvalidRunInputError: no such agent, or a model that cannot be.
    """
    info = workflow.info()
    call_id = workflow.memo_value(CALL_MEMO, None) if info.parent else None
    try:
        opened: OpenedRun = await workflow.execute_activity(
            OPEN_RUN,
            OpenRun(
                agent=run_input.agent,
                conversation=conversation,
                turn=turn,
                input=run_input if small else None,
                first_run_id=info.first_execution_run_id,
                parent=run_input.traceparent or _parent_in(info.headers),
                call_id=call_id if isinstance(call_id, str) else None,
            ),
            result_type=OpenedRun,
            start_to_close_timeout=limits.OPEN_RUN_TIMEOUT,
            retry_policy=limits.OPEN_RUN_RETRY,
            summary=run_input.agent[:60],
        )
        return opened
    except ActivityError as error:
        typed = error_of(error)
        if typed is None:
            raise
        raise typed from error


async def call_model(order: ModelCall, facts: AgentFacts, inbox: Inbox) -> ModelAnswer:
    """Ask the model for one step; where the run is stopped in the meantime, not longer than its grace.

    Raises:
        ModelRequestError, ModelUnavailableError: the endpoint refuses, or stays away beyond the agent's patience.
    """
    try:
        return await _ask_model(CALL_MODEL, order, ModelAnswer, facts, inbox)
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        given_up = ModelUnavailableError(f"The call of {order.model} was given up: {error.cause or error}")
        raise error_of(error) or given_up from error


async def compact_conversation(order: CompactConversation, facts: AgentFacts, inbox: Inbox) -> Compacted:
    """Have the older messages summed up. That there is no summary, for whatever reason, is an outcome."""
    try:
        return await _ask_model(COMPACT_CONVERSATION, order, Compacted, facts, inbox, f"sum up {order.cut} messages")
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        typed = error_of(error)
        kind = type(typed or error.cause or error).__name__
        return Compacted(error=ErrorInfo(kind=kind, message=f"{error.cause or error}"))


async def call_tool(order: CallTool, facts: ToolFacts | None, calls: int = 1) -> ToolOutcome:
    """Run one call of a step that has so many `calls`.

    A tool that fails is an outcome; so is one that was lost, which only the workflow can see.
    """
    facts = facts or _UNKNOWN_TOOL
    order.max_bytes = limits.share_of_results(calls, local=facts.local)
    order.mcp = facts.mcp
    started = workflow.time()
    limit = timedelta(seconds=facts.timeout) + limits.ATTEMPT_MARGIN
    retry = limits.tool_retry(facts.attempts)
    outcome: ToolOutcome
    try:
        if facts.local:
            outcome = await workflow.execute_local_activity(
                CALL_TOOL, order, result_type=ToolOutcome, start_to_close_timeout=limit, retry_policy=retry
            )
        else:
            outcome = await workflow.execute_activity(
                CALL_TOOL,
                order,
                result_type=ToolOutcome,
                task_queue=facts.task_queue,
                start_to_close_timeout=limit,
                schedule_to_start_timeout=timedelta(seconds=facts.queue_timeout) if facts.queue_timeout else None,
                heartbeat_timeout=limits.HEARTBEAT_TIMEOUT,
                retry_policy=retry,
                # A run that is cancelled ends when its tools have: their spans are closed, and nothing runs on unseen.
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                summary=order.call.name[:60],
            )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        outcome = await record(RECORD_LOST_CALL, _lost(order, facts, error, started), ToolOutcome)
    if outcome.unsettled is not None:
        outcome = await record(RECORD_LOST_CALL, _unsettled(order, outcome, started), ToolOutcome)
    return outcome


async def check_edit(order: CheckEdit) -> CheckedEdit:
    """Have a person's edit of a call's arguments looked at; that it cannot be just now is a refusal too."""
    try:
        edited: CheckedEdit = await workflow.execute_activity(
            CHECK_EDIT,
            order,
            result_type=CheckedEdit,
            start_to_close_timeout=limits.CHECK_EDIT_TIMEOUT,
            schedule_to_close_timeout=limits.CHECK_EDIT_PATIENCE,
            summary=order.call.name[:60],
        )
        return edited
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        return CheckedEdit(refused=f"The arguments could not be looked at ({error.cause or error}); try again.")


async def record_decision(order: RecordDecision) -> RecordedDecision:
    """Put a person's decision on the trace; where the call does not run, find what the model is told."""
    recorded: RecordedDecision = await record(RECORD_DECISION, order, RecordedDecision)
    return recorded


async def finish_run(finished: FinishRun) -> None:
    """Close a run's trace."""
    await record(FINISH_RUN, finished)


async def record(activity: str, what: BaseModel, result_type: type[Any] | None = None) -> Any:
    """A local activity that writes a span: it costs one event, and runs on this workflow's own worker."""
    return await workflow.execute_local_activity(
        activity,
        what,
        result_type=result_type,
        start_to_close_timeout=limits.RECORD_TIMEOUT,
        retry_policy=limits.RECORD_RETRY,
    )


async def _ask_model(
    activity: str,
    order: ConversationRequest,
    result_type: type[Answer],
    facts: AgentFacts,
    inbox: Inbox,
    summary: str | None = None,
) -> Answer:
    """An activity that waits for a model: by the time, the patience and the queue that the agent has for it."""
    handle: workflow.ActivityHandle[Answer] = workflow.start_activity(
        activity,
        order,
        result_type=result_type,
        task_queue=facts.model_task_queue,
        start_to_close_timeout=timedelta(seconds=facts.model_timeout) + limits.ANSWER_MARGIN,
        heartbeat_timeout=limits.HEARTBEAT_TIMEOUT,
        retry_policy=limits.model_retry(facts.model_attempts),
        summary=summary,
    )
    return await inbox.unless_stopped(handle)


def _lost(order: CallTool, facts: ToolFacts, error: ActivityError, started: float) -> LostCall:
    timed_out = error.cause.type if isinstance(error.cause, TimeoutError) else None
    attempts = facts.attempts
    if timed_out is TimeoutType.SCHEDULE_TO_START:
        kind, attempts = "tool_lost", 0
        says = (
            f"was not started: no worker of task queue {facts.task_queue!r} took it within {facts.queue_timeout:g} s."
        )
    else:
        if timed_out is TimeoutType.START_TO_CLOSE:
            kind, why = "tool_timeout", f"did not come back within {facts.timeout:g} s"
        else:
            kind, why = "tool_lost", "was lost: its worker died, stopped answering, or shut down"
        times = f", on each of {attempts} attempts" if attempts > 1 else ""
        says = f"{why}{times}. It may or may not have done its work."
    return LostCall(
        where=order.where,
        call=order.call,
        kind=kind,
        message=f"The tool {order.call.name} {says}",
        attempts=attempts,
        step=order.step,
        started=started,
    )


def _unsettled(order: CallTool, outcome: ToolOutcome, started: float) -> LostCall:
    return LostCall(
        where=order.where,
        call=order.call,
        kind="",
        message="",
        attempts=outcome.attempts,
        step=order.step,
        started=started,
        failure=outcome.unsettled,
    )


def _parent_in(headers: Mapping[str, Payload]) -> str | None:
    """The traceparent that the client sent along, ours or the SDK's own interceptors'."""
    payload = headers.get(TRACE_HEADER)
    if payload is None:
        return None
    try:
        carrier = json.loads(payload.data)
    except ValueError:
        return None
    parent = carrier.get("traceparent") if isinstance(carrier, dict) else None
    return parent if isinstance(parent, str) else None
