"""When spans leave this process: a run's parents at once, all others once what they tell of is sure to stand."""

from __future__ import annotations

import os
import threading
import time
from collections import deque

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from mulligan import otlp
from mulligan.semconv import AGENT_STEPS, INVOKE_AGENT

__all__ = ["HeldBack", "exporting"]

HELD_SECONDS = 1.0
_BATCH_MILLISECONDS = 200
_LOOK_SECONDS = 0.1


def exporting() -> SpanProcessor:
    """The processor that exports by OTLP, as the environment says."""
    delay = None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else _BATCH_MILLISECONDS
    return HeldBack(BatchSpanProcessor(otlp.span_exporter(), schedule_delay_millis=delay))


class HeldBack(SpanProcessor):
    """Hands each span on a second after its end; `invoke_agent` and `agent.steps`, which others hang on, at once.

    A span ends some milliseconds before Temporal has the result of its activity. A worker that is killed between the two
    must not have exported it: the next worker does the work again, and would tell of it a second time. So what such a
    worker loses is the spans of its last second, and nothing is ever there twice.
    """

    def __init__(self, processor: SpanProcessor, seconds: float = HELD_SECONDS) -> None:
        self._processor = processor
        self._seconds = seconds
        self._held: deque[tuple[float, ReadableSpan]] = deque()
        self._stopped = threading.Event()
        self._handing_on = threading.Lock()
        threading.Thread(target=self._until_stopped, name="mulligan-spans", daemon=True).start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing is held back of a start."""
        self._processor.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Hold it, or hand it on if others hang on it."""
        if span.name == AGENT_STEPS or span.name.startswith(f"{INVOKE_AGENT} "):
            self._processor.on_end(span)
        else:
            self._held.append((time.monotonic() + self._seconds, span))

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export all that has ended, now."""
        self._hand_on(float("inf"))
        return self._processor.force_flush(timeout_millis)

    def shutdown(self) -> None:
        """Export all that has ended, and stop."""
        self._stopped.set()
        self._hand_on(float("inf"))
        self._processor.shutdown()

    def _until_stopped(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            self._hand_on(time.monotonic())

    def _hand_on(self, now: float) -> None:
        with self._handing_on:
            while self._held and self._held[0][0] <= now:
                self._processor.on_end(self._held.popleft()[1])
