"""The span of one attempt of a tool call while it is open, and how any span is marked as failed or given content."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.trace import Span, Status, StatusCode, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mulligan.content import Media
from mulligan.observe import semconv
from mulligan.observe.spans import SpanFailure, content_attributes, cut, tool_call_failure
from mulligan.wire.run_context import RunContext


class ToolCallSpan:
    """One attempt of a tool call, open until `succeed` or `fail`. A span that gets neither is never exported.

    Args:
        span: OpenTelemetry's span.
        start: When it began, in seconds since the epoch.
        captures_content: Whether spans may carry arguments, results and texts that quote them.
        count: Counts the attempt in the metrics, by its seconds, its error's kind and whether that was recovered.
    """

    def __init__(
        self, span: Span, start: float, *, captures_content: bool, count: Callable[[float, str | None, bool], None]
    ) -> None:
        self.span = span
        self._start = start
        self._captures_content = captures_content
        self._count = count
        self._end_time: float | None = None

    def set_end_time(self) -> None:
        """End the attempt's time now. The outcome follows later, when the other calls of the answer have theirs."""
        self._end_time = time.time()

    def succeed(self, text: str, media: Sequence[Media] = ()) -> None:
        """End the span of a call that has a result. Its status stays unset, as OpenTelemetry's conventions ask.

        Args:
            text: Its text.
            media: Its images, files and audio.
        """
        self.span.set_attributes(content_attributes(media))
        if self._captures_content:
            for attribute in (semconv.AI_RESULT, semconv.TOOL_RESULT):
                add_content(self.span, attribute, text)
        self._finish(None, recovered=False)

    def fail(self, kind: str, *, text: str, safe_text: str, exception: str, recovered: bool) -> None:
        """End the span of a call that failed.

        Args:
            kind: The error's kind.
            text: What is returned to the model.
            safe_text: The part of it that quotes no input.
            exception: The exception's type.
            recovered: Whether it is returned to the model, so that the run continues.
        """
        description = text if self._captures_content else safe_text
        mark_failed(self.span, tool_call_failure(kind, description, recovered=recovered, exception=exception))
        self._finish(kind, recovered=recovered)

    def fail_attempt(self, kind: str, text: str, exception: str) -> None:
        """End the span of an attempt whose failure is not returned to the model: it is retried, or the run ends."""
        self.fail(kind, text=text, safe_text=text, exception=exception, recovered=False)

    def lose(self) -> None:
        """End the span of an attempt whose worker died before it could write it."""
        self.fail_attempt("tool_lost", "Its worker died, or stopped answering.", semconv.WORKER_LOST)

    def _finish(self, error: str | None, *, recovered: bool) -> None:
        end = self._end_time or time.time()
        self.span.end(nanoseconds(end))
        self._count(end - self._start, error, recovered)


def mark_failed(span: Span, failure: SpanFailure) -> None:
    """Set the status ERROR, and add the attributes and the `exception` event of the failure."""
    span.set_attributes(failure.all_attributes)
    span.set_status(Status(StatusCode.ERROR, failure.text))
    # Not record_exception: it adds a stack trace, whose lines may quote secrets.
    if failure.event:
        span.add_event(semconv.EXCEPTION, failure.event)


def span_of_run(context: RunContext) -> Span:
    """The span `invoke_agent` of a run, as the parent of others: it is exported already."""
    return get_current_span(TraceContextTextMapPropagator().extract({"traceparent": context.trace}))


def add_content(span: Span, attribute: str, value: Any) -> None:
    """Set an attribute to content: a text, or a value that is written as JSON."""
    if span.is_recording():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        span.set_attribute(attribute, cut(text))


def nanoseconds(seconds: float) -> int:
    """Seconds as OpenTelemetry counts time."""
    return int(seconds * 1e9)
