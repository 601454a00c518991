"""Runs a tool call as an activity, and makes an outcome of a call that was lost, which only the workflow can see."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType, is_cancelled_exception

from mulligan.errors import InvalidActivityResultError, error_of
from mulligan.observe.semconv import WORKER_LOST
from mulligan.wire.agent_facts import ToolFacts
from mulligan.wire.event_types import ATTEMPT_ENDED
from mulligan.wire.tool_call import CALL_TOOL, RECORD_FAILED_CALL, CallTool, FailedCall, ToolOutcome
from mulligan.wire.ui_summary import one_line
from mulligan.workflows import limits
from mulligan.workflows.agent_route import is_declined
from mulligan.workflows.running_agent import RunningAgent
from mulligan.workflows.scheduling import SCHEDULES, Schedule
from mulligan.workflows.step_call import StepCall

_FACTS_OF_UNKNOWN_TOOL = ToolFacts(timeout=limits.UNKNOWN_TOOL_TIMEOUT)

_REASON_CHARS = 500


async def call_tool(agent: RunningAgent, call: StepCall, most_bytes: int | None) -> ToolOutcome:
    """Run one tool call. A tool that fails is an outcome, and so is one whose worker was lost.

    `most_bytes`: the limit of its result, if it is less than usual.
    """
    request, facts = call.request, call.facts or _FACTS_OF_UNKNOWN_TOOL
    assert request is not None
    name = request.call.name
    request.max_bytes = most_bytes
    request.mcp = facts.mcp
    request.has_own_queue = facts.task_queue is not None
    started = workflow.time()
    try:
        outcome = await agent.activity(CALL_TOOL, request, ToolOutcome, summary=name, schedule=_schedule(facts))
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        lost = _lost_call(request, facts, error, started)
        outcome = await agent.activity(RECORD_FAILED_CALL, lost, ToolOutcome, summary=f"{name}: {lost.kind}")
    if outcome.failure_without_policy is not None:
        # The worker of the tool does not know the agent: the agent's worker applies its policy.
        failure, attempts = outcome.failure_without_policy, outcome.attempts
        failed = FailedCall.like(request, kind="", message="", attempts=attempts, started=started, failure=failure)
        outcome = await agent.activity(RECORD_FAILED_CALL, failed, ToolOutcome, summary=f"{name}: failed")
    return outcome


def _schedule(facts: ToolFacts) -> Schedule:
    return replace(
        SCHEDULES[CALL_TOOL],
        timeout=timedelta(seconds=facts.timeout) + limits.TOOL_ATTEMPT_MARGIN,
        retry=limits.tool_retry(facts.attempts),
        is_local=facts.local,
        queue=facts.task_queue,
        queue_timeout=timedelta(seconds=facts.queue_timeout) if facts.queue_timeout else None,
        is_routed=facts.task_queue is None,
    )


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
            kind, reason = "tool_lost", _why_lost(error.cause)
        times = f", on each of {attempts} attempts" if attempts > 1 else ""
        problem = f"{reason}{times}. It may or may not have done its work."
    return FailedCall.like(
        request,
        kind=kind,
        message=f"The tool {request.call.name} {problem}",
        attempts=attempts,
        written=_attempts_with_spans(error.cause) if attempts > 1 and not facts.local else None,
        started=started,
    )


def _why_lost(cause: BaseException | None) -> str:
    """What became of a call without a result. A worker may say so itself: the storage for large ones does not take it."""
    if isinstance(cause, ApplicationError) and cause.type not in (None, WORKER_LOST):
        reason = one_line(cause.message)[:_REASON_CHARS].rstrip(". ")
        return f"was lost: its worker has no result to send ({cause.type}: {reason})"
    return "was lost: its worker died, stopped answering, or shut down"


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
