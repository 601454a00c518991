"""The span of the model call that summarizes older messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mulligan.model_name import ModelName
from mulligan.observe.spans import ChatAttempt, SpanFailure
from mulligan.trace_view.history_events import Activity
from mulligan.wire.compaction import CompactConversation, Compacted

if TYPE_CHECKING:
    from mulligan.trace_view.history_spans import ExecutionSpans


def _add_compaction(execution: ExecutionSpans, activity: Activity) -> None:
    request, failure = activity.request, execution.failure(activity)
    assert isinstance(request, CompactConversation)
    if isinstance(activity.outcome, Compacted) and (error := activity.outcome.error) is not None:
        failure = SpanFailure(kind=error.kind, text=error.message)
    attempt = ChatAttempt(
        model=ModelName.parse(request.model).name,
        step=request.step,
        attempt=activity.attempt,
        compacted_messages=request.cut,
    )
    key = (request.where.trace, "compaction", str(request.step), str(request.cut))
    execution.spans[key] = execution.chat(activity, request.where.trace, attempt, failure)


ADD_SPANS: Mapping[type, Callable[[ExecutionSpans, Activity], None]] = {CompactConversation: _add_compaction}
