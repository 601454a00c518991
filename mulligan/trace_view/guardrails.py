"""The span of an answer that a validator has refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mulligan.trace_view.history_events import Activity
from mulligan.wire.guardrails import CheckOutput, OutputChecked
from mulligan.wire.tool_call import RecordedCall

if TYPE_CHECKING:
    from mulligan.trace_view.history_spans import ExecutionSpans


def _add_refused(execution: ExecutionSpans, activity: Activity) -> None:
    request, outcome = activity.request, activity.outcome
    assert isinstance(request, CheckOutput)
    if not isinstance(outcome, OutputChecked) or (rejected := outcome.rejected) is None or activity.ended is None:
        return
    recorded = RecordedCall(
        text=rejected.text,
        error=rejected.error,
        failure=rejected.failure,
        attempts=1,
        trace=request.where.trace,
        call_id=request.call.id,
        name=request.call.name,
        step=request.step,
        started=activity.started or activity.scheduled,
    )
    execution.add_recorded_call(recorded, activity.ended)


ADD_SPANS: Mapping[type, Callable[[ExecutionSpans, Activity], None]] = {CheckOutput: _add_refused}
