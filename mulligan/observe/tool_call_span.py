"""The span of one attempt of a tool call, and what a failure looks like on any span."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from opentelemetry.trace import Span, Status, StatusCode

from mulligan.observe import semconv

if TYPE_CHECKING:
    from mulligan.observe.telemetry import Telemetry

__all__ = ["ToolCallSpan", "cut", "fail", "nanoseconds"]

LONGEST_TEXT = 4_096
"""Characters of an error's text, or of content, on a span: backends drop or cut what is longer."""


class ToolCallSpan:
    """One attempt of a tool call, open until it is told how it went. One that is never told is never exported."""

    def __init__(self, telemetry: Telemetry, span: Span, agent: str, tool: str, start: float) -> None:
        self._telemetry = telemetry
        self.span = span
        self._agent, self._tool, self._start = agent, tool, start
        self._over: float | None = None

    def is_over(self) -> None:
        """What it tells of ends now, though how it went is told later: its siblings may take longer."""
        self._over = time.time()

    def succeed(self, text: str) -> None:
        """The tool gave a result. The status stays unset, as OpenTelemetry asks of success."""
        for attribute in (semconv.AI_RESULT, semconv.TOOL_RESULT):
            self._telemetry.put_content(self.span, attribute, text)
        self._end(None, recovered=False)

    def fail(self, kind: str, *, text: str, safe_text: str, exception: str, recovered: bool) -> None:
        """It went wrong. `text` is what the model was told; `safe_text` the part of it that quotes no input."""
        shown = text if self._telemetry.content else safe_text
        self.span.set_attributes({semconv.RECOVERED: recovered, semconv.AI_ERROR: cut(shown)})
        fail(self.span, kind, cut(shown), exception)
        self._end(kind, recovered=recovered)

    def _end(self, error: str | None, *, recovered: bool) -> None:
        end, count = self._over or time.time(), self._telemetry.metrics.tool_call
        self.span.end(nanoseconds(end))
        count(end - self._start, agent=self._agent, tool=self._tool, error=error, recovered=recovered)

    def fail_attempt(self, kind: str, text: str, exception: str) -> None:
        """This attempt went wrong, and the model is not told: another attempt follows, or the run ends."""
        self.fail(kind, text=text, safe_text=text, exception=exception, recovered=False)


def fail(span: Span, kind: str, text: str, exception: str) -> None:
    """Mark a span as failed: its type, its status, an `exception` event."""
    span.set_attribute(semconv.ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR, text))
    # Not record_exception: it writes a stack trace, whose lines may quote values that are nobody's business.
    span.add_event(semconv.EXCEPTION, {semconv.EXCEPTION_TYPE: exception, semconv.EXCEPTION_MESSAGE: text})


def cut(text: str) -> str:
    """The text, as far as a span takes it."""
    more = len(text) - LONGEST_TEXT
    return text if more <= 0 else f"{text[:LONGEST_TEXT]}… ({more} more characters)"


def nanoseconds(seconds: float) -> int:
    """As OpenTelemetry counts time."""
    return int(seconds * 1e9)
