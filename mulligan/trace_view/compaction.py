"""The span of the model call that summarizes older messages."""

from __future__ import annotations

from mulligan.observe import spans
from mulligan.observe.spans import ChatAttempt, SpanFailure
from mulligan.trace_view.history_events import Activity
from mulligan.trace_view.history_spans import AddSpans, ExecutionSpans
from mulligan.wire.compaction import CompactConversation, Compacted


def _add_compaction(execution: ExecutionSpans, activity: Activity) -> None:
    request, failure = activity.request, execution.failure(activity)
    assert isinstance(request, CompactConversation)
    if isinstance(activity.outcome, Compacted) and (error := activity.outcome.error) is not None:
        failure = SpanFailure(kind=error.kind, text=error.message)
    attempt, trace = ChatAttempt.of(request, activity.attempt, compacted_messages=request.cut), request.where.trace
    key = (trace, "compaction", request.step, request.cut)
    execution.put_activity(key, activity, spans.chat(trace, attempt), failure)


ADD_SPANS: AddSpans = {CompactConversation: _add_compaction}
