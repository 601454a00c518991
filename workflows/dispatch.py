"""How a run's activities are scheduled, and what the run makes of one that failed or was lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import Priority, RawValue
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType, is_cancelled_exception

from mulligan.errors import InvalidActivityResultError, InvalidRunInputError, ModelUnavailableError, error_of
from mulligan.run_input import TRACEPARENT, RunInput
from mulligan.values import ErrorInfo
from mulligan.wire.agent_facts import OPEN_RUN, AgentFacts, OpenedRun, OpenRun, ToolFacts
from mulligan.wire.compaction_request import COMPACT_CONVERSATION, CompactConversation, Compacted
from mulligan.wire.compressed_input import LONGEST_MESSAGE
from mulligan.wire.event_types import ATTEMPT_ENDED
from mulligan.wire.model_call import CALL_MODEL, ConversationRequest, ModelAnswer, ModelCall
from mulligan.wire.questions import CHECK_ANSWER, CheckAnswer, CheckedAnswer
from mulligan.wire.run_context import TRACE_HEADER
from mulligan.wire.run_end import FINISH_RUN, FinishRun
from mulligan.wire.sub_run import CALL_MEMO
from mulligan.wire.tool_call import CALL_TOOL, RECORD_FAILED_CALL, CallTool, FailedCall, ToolOutcome
from mulligan.wire.ui_summary import ui_summary
from mulligan.wire.updates import CHECK_EDIT, RECORD_DECISION, CheckedEdit, CheckEdit, RecordDecision, RecordedDecision
from mulligan.workflows import limits
from mulligan.workflows.activity_result import read_result
from mulligan.workflows.agent_route import AgentRoute, is_declined
from mulligan.workflows.budgets.over_budget import raise_if_over_budget
from mulligan.workflows.memo import memo_json
from mulligan.workflows.people.inbox import Inbox

__all__ = [
    "call_model",
    "call_tool",
    "check_answer",
    "check_edit",
    "compact_conversation",
    "finish_run",
    "open_run",
    "raise_model_error",
    "record",
    "record_decision",
    "run_model_activity",
]

Result = TypeVar("Result", bound=BaseModel)
_CALL_ID_CHARS = 1_000
_FACTS_OF_UNKNOWN_TOOL = ToolFacts(timeout=limits.UNKNOWN_TOOL_TIMEOUT)


async def open_run(
    run_input: RunInput, *, inline: bool, conversation: str, turn: int, longest_message: int, route: AgentRoute
) -> OpenedRun:
    """Resolve the agent on a worker, pin its facts, open the trace.

    `inline`: whether the input is small enough to be part of the activity's; the worker queries for it otherwise.
    `conversation`: the agent's key. `longest_message`: bytes of the longest new message.

    Raises:
        InvalidRunInputError: there is no such agent, its model is not a valid one, or a part of the input is too large.
    """
    info = workflow.info()
    request = OpenRun(
        agent=run_input.agent,
        conversation=conversation,
        turn=turn,
        input=run_input if inline else None,
        first_run_id=info.first_execution_run_id,
        parent=run_input.traceparent or _traceparent_in(info.headers),
        call_id=_call_id_in_memo() if info.parent else None,
        longest_message=longest_message if longest_message > LONGEST_MESSAGE else None,
    )

    async def schedule(queue: str | None) -> OpenedRun:
        opened: RawValue = await workflow.execute_activity(
            OPEN_RUN,
            request,
            result_type=RawValue,
            task_queue=queue,
            schedule_to_start_timeout=limits.AGENT_START_TIMEOUT if queue else None,
            start_to_close_timeout=limits.OPEN_RUN_TIMEOUT,
            retry_policy=limits.OPEN_RUN_RETRY,
            priority=route.priority,
            summary=ui_summary(run_input.agent),
        )
        return read_result(OPEN_RUN, opened, OpenedRun)

    try:
        return await route.run(schedule, waits=False)
    except ActivityError as error:
        if is_declined(error):
            message = f"{getattr(error.cause, 'message', '')} Nor do the other workers of the task queue serve it."
            raise InvalidRunInputError(message) from None
        typed = error_of(error)
        if typed is None:
            raise
        raise typed from error


async def call_model(request: ModelCall, facts: AgentFacts, inbox: Inbox, route: AgentRoute) -> ModelAnswer:
    """Call the model for one step. After a request to stop, it may run for the grace time only.

    Raises:
        ModelRequestError, ModelUnavailableError: the endpoint refuses, or is unavailable for longer than the agent's
            patience.
    """
    try:
        summary = ui_summary(f"step {request.step}: {request.model.partition(':')[2]}")
        return await run_model_activity(
            CALL_MODEL, request, ModelAnswer, facts=facts, inbox=inbox, route=route, summary=summary
        )
    except ActivityError as error:
        raise_model_error(request, error)


def raise_model_error(request: ModelCall, error: ActivityError) -> NoReturn:
    """Raise the error of a model call whose activity has failed; a cancellation as it is, not as its own cause.

    Raises:
        OverBudget: the model was not called.
    """
    if is_cancelled_exception(error):
        raise error
    raise_if_over_budget(error)
    unavailable = ModelUnavailableError(f"The call of {request.model} failed: {error.cause or error}")
    raise error_of(error) or unavailable from error


async def compact_conversation(
    request: CompactConversation, facts: AgentFacts, inbox: Inbox, route: AgentRoute
) -> Compacted:
    """Have the older messages summarized. A failure is returned, not raised, as the run can continue without a summary."""
    try:
        return await run_model_activity(
            COMPACT_CONVERSATION,
            request,
            Compacted,
            facts=facts,
            inbox=inbox,
            route=route,
            summary=f"sum up {request.cut} messages",
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        raise_if_over_budget(error)
        typed = error_of(error)
        kind = type(typed or error.cause or error).__name__
        return Compacted(error=ErrorInfo(kind=kind, message=f"{error.cause or error}"))


async def call_tool(
    request: CallTool, facts: ToolFacts | None, route: AgentRoute, calls_in_step: int = 1
) -> ToolOutcome:
    """Run one tool call. `facts` is None if the tool was added to the agent after the turn had opened.

    A tool that fails is an outcome, and so is one whose worker was lost, which only the workflow can see.
    """
    facts = facts or _FACTS_OF_UNKNOWN_TOOL
    request.max_bytes = limits.share_of_results(calls_in_step, local=facts.local)
    request.mcp = facts.mcp
    request.has_own_queue = facts.task_queue is not None
    started = workflow.time()

    async def schedule(queue: str | None) -> ToolOutcome:
        return await _schedule_tool(request, facts, queue, route.priority)

    outcome: ToolOutcome
    try:
        outcome = await (schedule(None) if facts.task_queue else route.run(schedule))
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        lost = _lost_call(request, facts, error, started)
        outcome = await record(
            RECORD_FAILED_CALL, lost, ToolOutcome, route=route, summary=f"{request.call.name}: {lost.kind}"
        )
    if outcome.unsettled is not None:
        failed = _call_without_policy(request, outcome, started)
        outcome = await record(
            RECORD_FAILED_CALL, failed, ToolOutcome, route=route, summary=f"{request.call.name}: failed"
        )
    return outcome


async def _schedule_tool(request: CallTool, facts: ToolFacts, queue: str | None, priority: Priority) -> ToolOutcome:
    """Run a tool's activity. `queue`: of the workers that serve the agent; None: the tool's own, or that of the run."""
    limit = timedelta(seconds=facts.timeout) + limits.TOOL_ATTEMPT_MARGIN
    retry = limits.tool_retry(facts.attempts)
    outcome: RawValue
    if facts.local and queue is None:
        outcome = await workflow.execute_local_activity(
            CALL_TOOL,
            request,
            result_type=RawValue,
            start_to_close_timeout=limit,
            retry_policy=retry,
            summary=ui_summary(request.call.name),
        )
        return read_result(CALL_TOOL, outcome, ToolOutcome)
    queue_timeout = timedelta(seconds=facts.queue_timeout) if facts.queue_timeout else None
    outcome = await workflow.execute_activity(
        CALL_TOOL,
        request,
        result_type=RawValue,
        task_queue=queue or facts.task_queue,
        start_to_close_timeout=limit,
        schedule_to_start_timeout=limits.AGENT_START_TIMEOUT if queue else queue_timeout,
        heartbeat_timeout=limits.HEARTBEAT_TIMEOUT,
        retry_policy=retry,
        priority=priority,
        # A cancelled run ends after its tools have: their spans are closed, and none continues to run unseen.
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=ui_summary(request.call.name),
    )
    return read_result(CALL_TOOL, outcome, ToolOutcome)


async def check_edit(request: CheckEdit, route: AgentRoute) -> CheckedEdit:
    """Have a worker check arguments that a person has edited. They are refused as well if no worker can check them."""

    async def schedule(queue: str | None) -> CheckedEdit:
        edited: RawValue = await workflow.execute_activity(
            CHECK_EDIT,
            request,
            result_type=RawValue,
            task_queue=queue,
            schedule_to_start_timeout=limits.AGENT_START_TIMEOUT if queue else None,
            start_to_close_timeout=limits.CHECK_EDIT_TIMEOUT,
            schedule_to_close_timeout=limits.CHECK_EDIT_TOTAL_TIMEOUT,
            retry_policy=limits.CHECK_EDIT_RETRY,
            priority=route.priority,
            summary=ui_summary(request.call.name),
        )
        return read_result(CHECK_EDIT, edited, CheckedEdit)

    try:
        return await route.run(schedule, waits=False)
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        return CheckedEdit(refused=f"The arguments could not be checked ({error.cause or error}); try again.")


async def check_answer(request: CheckAnswer) -> CheckedAnswer:
    """Have a worker check a person's answer to a question with a schema. It is refused as well if no worker can."""
    try:
        checked: RawValue = await workflow.execute_activity(
            CHECK_ANSWER,
            request,
            result_type=RawValue,
            start_to_close_timeout=limits.CHECK_EDIT_TIMEOUT,
            schedule_to_close_timeout=limits.CHECK_EDIT_TOTAL_TIMEOUT,
        )
        return read_result(CHECK_ANSWER, checked, CheckedAnswer)
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        return CheckedAnswer(refused=f"The answer could not be checked ({error.cause or error}); try again.")


async def record_decision(request: RecordDecision, route: AgentRoute | None = None) -> RecordedDecision:
    """Record a person's decision in the trace. The result has the feedback for the model if the call does not run."""
    summary = f"{request.call.name}: {request.decision.decision}"
    recorded: RecordedDecision = await record(RECORD_DECISION, request, RecordedDecision, route=route, summary=summary)
    return recorded


async def finish_run(request: FinishRun) -> None:
    """Close a run's trace."""
    await record(FINISH_RUN, request, summary=request.status)


async def record(
    activity: str,
    request: BaseModel,
    result_type: type[BaseModel] | None = None,
    *,
    route: AgentRoute | None = None,
    summary: str | None = None,
) -> Any:
    """Run a local activity that writes a span: it adds one event to the history, and runs on the workflow's own worker.

    `route`: for one that needs the agent. If the workflow's own worker does not serve it, the activity is not a local one.
    """
    shown = ui_summary(summary) if summary else None

    async def schedule(queue: str | None) -> RawValue:
        raw: RawValue
        if queue is None:
            raw = await workflow.execute_local_activity(
                activity,
                request,
                result_type=RawValue,
                start_to_close_timeout=limits.RECORD_TIMEOUT,
                retry_policy=limits.RECORD_RETRY,
                summary=shown,
            )
            return raw
        raw = await workflow.execute_activity(
            activity,
            request,
            result_type=RawValue,
            task_queue=queue,
            schedule_to_start_timeout=limits.AGENT_START_TIMEOUT,
            start_to_close_timeout=limits.RECORD_TIMEOUT,
            retry_policy=limits.RECORD_RETRY,
            priority=route.priority if route else Priority.default,
            summary=shown,
        )
        return raw

    raw = await (schedule(None) if route is None else route.run(schedule))
    return read_result(activity, raw, result_type) if result_type else None


async def run_model_activity(
    activity: str,
    request: ConversationRequest,
    result_type: type[Result],
    *,
    facts: AgentFacts,
    inbox: Inbox,
    route: AgentRoute,
    summary: str | None = None,
) -> Result:
    """Run an activity that calls a model, with the timeout, the attempts and the task queue of the agent's model calls."""

    async def schedule(queue: str | None) -> Result:
        if queue is not None and facts.model_task_queue is not None:
            queue = f"{queue}-models"
        handle: workflow.ActivityHandle[RawValue] = workflow.start_activity(
            activity,
            request,
            result_type=RawValue,
            task_queue=queue or facts.model_task_queue,
            schedule_to_start_timeout=limits.AGENT_START_TIMEOUT if queue else None,
            start_to_close_timeout=timedelta(seconds=facts.model_timeout) + limits.MODEL_ATTEMPT_MARGIN,
            heartbeat_timeout=limits.HEARTBEAT_TIMEOUT,
            retry_policy=limits.model_retry(facts.model_attempts),
            priority=route.priority,
            summary=summary,
        )
        return read_result(activity, await inbox.unless_stopped(handle), result_type)

    return await route.run(schedule)


def _lost_call(request: CallTool, facts: ToolFacts, error: ActivityError, started: float) -> FailedCall:
    """A call whose activity has failed: it timed out, its worker was lost, or no worker started it."""
    timeout = error.cause.type if isinstance(error.cause, TimeoutError) else None
    attempts = facts.attempts
    if timeout is TimeoutType.SCHEDULE_TO_START or is_declined(error):
        kind, attempts = "tool_lost", attempts - 1
        # Each attempt waits for a worker: an earlier one may have been started, and lost.
        again = ". An attempt before may have been started, and may have done its work" if attempts else ""
        reason = (
            "no worker serves its agent"
            if timeout is None
            else f"no worker of task queue {facts.task_queue!r} took it within {facts.queue_timeout or 0:g} s"
        )
        problem = f"was not started: {reason}{again}."
    elif isinstance(error_of(error), InvalidActivityResultError):
        kind, problem = "tool_lost", "was lost: the result of its worker cannot be used. It may have done its work."
    else:
        if timeout is TimeoutType.START_TO_CLOSE:
            kind, reason = "tool_timeout", f"did not finish within {facts.timeout:g} s"
        else:
            kind, reason = "tool_lost", "was lost: its worker died, stopped answering, or shut down"
        times = f", on each of {attempts} attempts" if attempts > 1 else ""
        problem = f"{reason}{times}. It may or may not have done its work."
    return FailedCall(
        where=request.where,
        call=request.call,
        kind=kind,
        message=f"The tool {request.call.name} {problem}",
        attempts=attempts,
        written=_attempts_with_spans(error.cause) if attempts > 1 and not facts.local else None,
        step=request.step,
        started=started,
        repaired_by=request.repaired_by,
        decision=request.decision,
    )


def _attempts_with_spans(cause: BaseException | None) -> int | None:
    """How many of a call's first attempts have their spans, as its last heartbeat says; None if that is unknown."""
    if isinstance(cause, TimeoutError) and cause.type is TimeoutType.HEARTBEAT:
        details, otherwise = cause.last_heartbeat_details, 0
    elif isinstance(cause, ApplicationError):
        details, otherwise = cause.details, None
    else:
        return None
    marks = [each.get(ATTEMPT_ENDED) for each in details if isinstance(each, dict)]
    return max((mark for mark in marks if isinstance(mark, int)), default=otherwise)


def _call_without_policy(request: CallTool, outcome: ToolOutcome, started: float) -> FailedCall:
    """A call that failed on a worker that does not know the agent, so that the agent's worker applies its policy."""
    return FailedCall(
        where=request.where,
        call=request.call,
        kind="",
        message="",
        attempts=outcome.attempts,
        step=request.step,
        started=started,
        failure=outcome.unsettled,
        repaired_by=request.repaired_by,
        decision=request.decision,
    )


def _call_id_in_memo() -> str | None:
    """The id of the sub-agent's call that started the run, from the memo; None if another program started it."""
    call_id = memo_json(CALL_MEMO)
    return call_id if isinstance(call_id, str) and len(call_id) <= _CALL_ID_CHARS else None


def _traceparent_in(headers: Mapping[str, Payload]) -> str | None:
    """The W3C traceparent in the headers that the client sent, by our interceptor or by the SDK's own."""
    payload = headers.get(TRACE_HEADER)
    if payload is None:
        return None
    try:
        carrier = json.loads(payload.data)
    except (ValueError, RecursionError):
        return None
    traceparent = carrier.get("traceparent") if isinstance(carrier, dict) else None
    return traceparent if isinstance(traceparent, str) and TRACEPARENT.fullmatch(traceparent) else None
