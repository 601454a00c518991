"""The span of a call that has the result of an equal call of another run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mulligan.trace_view.history_events import Activity
from mulligan.wire.recorded_tools import FindRecord, FoundRecord

if TYPE_CHECKING:
    from mulligan.trace_view.history_spans import ExecutionSpans


def _add_found_record(execution: ExecutionSpans, activity: Activity) -> None:
    request, outcome = activity.request, activity.outcome
    assert isinstance(request, FindRecord)
    if not isinstance(outcome, FoundRecord) or (request.unrecorded == "live" and not outcome.found):
        return  # it is not known yet, or the activity that runs the tool has the span
    is_over = request.unrecorded == "diverge" and not outcome.found
    execution.add_recorded_call(outcome, activity.ended, is_over=is_over, recorded=outcome.found)


ADD_SPANS: Mapping[type, Callable[[ExecutionSpans, Activity], None]] = {FindRecord: _add_found_record}
