"""Runs of sub-agents: where their histories are, and the spans of the calls that they are the runs of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from mulligan.observe import semconv
from mulligan.observe.trace_ids import derive, parent_of_step
from mulligan.trace_view.history import chain
from mulligan.trace_view.history_events import Execution
from mulligan.trace_view.span import TraceSpan
from mulligan.values import ToolCall
from mulligan.wire.model_call import ModelCall
from mulligan.wire.sub_run import SubRunOutcome

__all__ = ["begun_span", "chains", "ended_span"]


async def chains(client: Client, workflow_id: str, run_id: str = "") -> list[list[Execution]]:
    """The chain of a run, and those of its sub-agents, and of theirs. Those beyond retention are left out.

    Raises:
        Unreadable: a payload cannot be decoded.
    """
    try:
        found = [await chain(client, workflow_id, run_id)]
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND or not run_id:
            raise
        return []
    for execution in found[0]:
        for child in execution.children:
            found += await chains(client, *child)
    return found


def begun_span(order: ModelCall, call: ToolCall, repairs: Sequence[str], at: float, execution: Execution) -> TraceSpan:
    """The span of a call whose run is not over, or whose own run was over before it."""
    error = execution.how if execution.closed is not None else ""
    about = {semconv.RECOVERED: False, semconv.REPAIRS: list(repairs)}
    trace, step = order.where.trace, order.step
    return _span(trace, step, (call.id, call.name), 1, (at, execution.closed), (error, ""), about)


def ended_span(done: SubRunOutcome, ended: float | None, said: Mapping[str, Any]) -> TraceSpan:
    """The span of a call whose run is over."""
    error, message = (done.error.kind, done.error.message) if done.error else ("", "")
    about = {
        semconv.RECOVERED: done.error is not None and done.failure is None,
        semconv.REPAIRS: done.repaired_by,
        **({semconv.SUB_RUN: done.sub_run} if done.sub_run else {}),
        **said,
    }
    call = done.call_id, done.name
    return _span(done.trace, done.step, call, done.attempts, (done.started, ended), (error, message), about)


def _span(
    trace: str, step: int, call: tuple[str, str], attempt: int, times: tuple[float, float | None],
    error: tuple[str, str], about: Mapping[str, Any],
) -> TraceSpan:  # fmt: skip
    parent, (call_id, name), (kind, message) = parent_of_step(trace, step), call, error
    failed = {semconv.ERROR_TYPE: kind, semconv.AI_ERROR: message} if kind else {}
    return TraceSpan(
        span_id=f"{derive(64, parent, 'tool', call_id, step, attempt):016x}",
        parent_id=parent.split("-")[2],
        name=semconv.TOOL_CALL,
        start=times[0],
        end=times[1],
        is_error=bool(kind),
        message=message,
        attributes={
            semconv.STEP: step,
            semconv.OPERATION_NAME: semconv.EXECUTE_TOOL,
            semconv.AI_NAME: name,
            semconv.AI_ID: call_id,
            semconv.ATTEMPT: attempt,
            **about,
            **failed,
        },
    )
