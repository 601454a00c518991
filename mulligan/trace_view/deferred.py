"""The span of a deferred call that has ended, in place of the open span that its body's activity has added."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mulligan.trace_view.history_events import Activity
from mulligan.wire.deferred import SettledCall

if TYPE_CHECKING:
    from mulligan.trace_view.history_spans import ExecutionSpans


def _add_settled_call(execution: ExecutionSpans, activity: Activity) -> None:
    outcome = activity.outcome
    assert isinstance(outcome, SettledCall)
    is_over = outcome.end in ("stopped", "cancelled")
    execution.add_recorded_call(outcome, activity.ended, is_over=is_over)


ADD_SPANS: Mapping[type, Callable[[ExecutionSpans, Activity], None]] = {SettledCall: _add_settled_call}
