"""The span of a call whose sub-agent's run has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mulligan.trace_view.history_events import Activity
from mulligan.wire.sub_agents import SubRunOutcome

if TYPE_CHECKING:
    from mulligan.trace_view.history_spans import ExecutionSpans


def _add_ended_run(execution: ExecutionSpans, activity: Activity) -> None:
    outcome = activity.outcome
    assert isinstance(outcome, SubRunOutcome)
    decided = execution.decisions.get((outcome.trace, outcome.call_id))
    execution.add_recorded_call(
        outcome,
        activity.ended,
        attempt=outcome.attempts,
        decision=decided.decision if decided else None,
        sub_run=outcome.sub_run,
    )


ADD_SPANS: Mapping[type, Callable[[ExecutionSpans, Activity], None]] = {SubRunOutcome: _add_ended_run}
