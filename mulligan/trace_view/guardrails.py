"""The span of an answer that a validator has refused."""

from __future__ import annotations

from mulligan.trace_view.history_events import Activity
from mulligan.trace_view.history_spans import AddSpans, ExecutionSpans
from mulligan.wire.guardrails import CheckOutput, OutputChecked


def _add_refused(execution: ExecutionSpans, activity: Activity) -> None:
    request, outcome = activity.request, activity.outcome
    assert isinstance(request, CheckOutput)
    if isinstance(outcome, OutputChecked) and outcome.rejected is not None and activity.ended is not None:
        start = activity.started or activity.scheduled
        execution.add_rejected(
            request.where.trace, request.call, request.step, outcome.rejected, (start, activity.ended)
        )


ADD_SPANS: AddSpans = {CheckOutput: _add_refused}
