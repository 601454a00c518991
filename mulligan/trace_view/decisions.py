"""The short spans of a call that waits for a person, rebuilt from history: when it was asked, what was decided."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from mulligan.observe import semconv
from mulligan.observe.trace_ids import derive, parent_of_step
from mulligan.trace_view.span import TraceSpan
from mulligan.values import ToolCall
from mulligan.wire.model_call import ModelCall
from mulligan.wire.tool_call import ToolOutcome
from mulligan.wire.updates import RecordedDecision

__all__ = ["decision_span", "outcome_of", "request_span", "said_of"]


def request_span(order: ModelCall, call: ToolCall, kind: str, at: float) -> TraceSpan:
    """`agent.request`."""
    return _span(semconv.AGENT_REQUEST, order.where.trace, order.step, call, at, {semconv.DECISION_KIND: kind})


def decision_span(done: RecordedDecision) -> TraceSpan:
    """`agent.decision`."""
    call = ToolCall(id=done.call_id, name=done.name, arguments="")
    at = datetime.fromisoformat(done.decision.at).timestamp()
    about = {semconv.DECISION_KIND: done.decision.kind, **said_of(done)}
    return _span(semconv.AGENT_DECISION, done.trace, done.step, call, at, about)


def said_of(done: RecordedDecision | None) -> dict[str, Any]:
    """What the call's own span says of its decision, if there was one."""
    if done is None:
        return {}
    decision = done.decision
    return {
        semconv.DECISION: decision.decision,
        semconv.DECIDED_AT: decision.at,
        **({semconv.DECIDED_BY: decision.by} if decision.by else {}),
        **({semconv.EDITED: True} if decision.edited else {}),
    }


def outcome_of(done: RecordedDecision) -> ToolOutcome | None:
    """What the call came to without running; None where it ran then."""
    if done.decision.decision == "approve":
        return None
    return ToolOutcome(text=done.text, error=done.error, failure=done.failure)


def _span(name: str, trace: str, step: int, call: ToolCall, at: float, about: dict[str, Any]) -> TraceSpan:
    parent = parent_of_step(trace, step)
    attributes = {semconv.TOOL_NAME: call.name, semconv.TOOL_CALL_ID: call.id, semconv.STEP: step}
    return TraceSpan(
        span_id=f"{derive(64, parent, name, call.id, step):016x}",
        parent_id=parent.split("-")[2],
        name=name,
        start=at,
        end=at,
        attributes={**attributes, **about},
    )
