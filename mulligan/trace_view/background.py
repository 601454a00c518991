"""The span of a background response: from its creation until it was read, or ended by the run."""

from __future__ import annotations

from mulligan.observe import spans
from mulligan.observe.spans import ChatAttempt, SpanFailure
from mulligan.trace_view.history_events import Activity
from mulligan.trace_view.history_spans import AddSpans, ExecutionSpans
from mulligan.wire.background import EndResponse, ReadResponse, ResponseState


def _add_response(execution: ExecutionSpans, activity: Activity) -> None:
    request, state = activity.request, activity.outcome
    assert isinstance(request, ReadResponse | EndResponse)
    error = request.error if isinstance(request, EndResponse) else None
    if isinstance(request, EndResponse) and error is None:
        return
    failure, end, waits = execution.failure(activity), activity.ended, ""
    if isinstance(state, ResponseState):
        error = state.error if state.status in ("failed", "expired") else None
        if state.status in ("running", "unknown"):
            end, waits = execution.execution.closed, "its background response"
    if error is not None:
        failure = SpanFailure(kind=error.kind, text=error.message)
    attempt = ChatAttempt.of(request, request.attempt, fallback=request.fallback)
    # A response that was lost at the provider is created again: each attempt has a span.
    key = (request.where.trace, "chat", request.step, request.fallback, request.attempt)
    execution.put(key, spans.chat(request.where.trace, attempt), request.started, end, failure, "" if end else waits)
    if isinstance(request, ReadResponse) and isinstance(state, ResponseState) and state.answer and activity.ended:
        execution.add_calls(request, state.answer, activity.ended)


ADD_SPANS: AddSpans = {ReadResponse: _add_response, EndResponse: _add_response}
