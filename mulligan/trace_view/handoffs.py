"""The span of a call that has handed a conversation over."""

from __future__ import annotations

from mulligan.trace_view.history_events import Activity
from mulligan.trace_view.history_spans import AddSpans, ExecutionSpans
from mulligan.wire.handoffs import HandoffOutcome, HandOver


def _add_handoff(execution: ExecutionSpans, activity: Activity) -> None:
    request, outcome = activity.request, activity.outcome
    assert isinstance(request, HandOver)
    is_handed = isinstance(outcome, HandoffOutcome) and outcome.failure_without_policy is None
    execution.add_tool_call(activity, request, handed_to=request.agent if is_handed else "")
    if isinstance(outcome, HandoffOutcome) and outcome.facts is not None:
        execution.agents[request.where.trace] = outcome.facts


ADD_SPANS: AddSpans = {HandOver: _add_handoff}
