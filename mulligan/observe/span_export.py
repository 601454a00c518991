"""When spans are exported: parent spans and those of lost attempts at once, all others half a second after their end."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from mulligan.observe import otlp
from mulligan.observe.retrying_export import RetryingExporter
from mulligan.observe.semconv import AGENT_STEPS, EXCEPTION_TYPE, INVOKE_AGENT, WORKER_LOST

DELAY_SECONDS = 0.5
PARENT_EXPORT_SECONDS = 0.25
"""How long a run waits for the export of a parent span, which goes on after that. The next runs do not wait until an export
has succeeded: a collector that is down costs them nothing."""
_BATCH_MILLISECONDS = 200
_CHECK_SECONDS = 0.1


class ParentSpans(Protocol):
    """A span processor that can wait for the export of the spans that are parents of others."""

    async def wait_for_parent_spans(self) -> None:
        """Wait until the parent spans that have ended are exported, at most `PARENT_EXPORT_SECONDS`. Return at once while
        the collector does not answer.
        """


def is_parent_span(span: ReadableSpan) -> bool:
    """Whether other spans have this one as their parent: it is exported at once."""
    return span.name == AGENT_STEPS or span.name.startswith(f"{INVOKE_AGENT} ")


def is_of_lost_attempt(span: ReadableSpan) -> bool:
    """Whether a later attempt has written it, because its own worker died: its ids and its end depend on no result."""
    return any((event.attributes or {}).get(EXCEPTION_TYPE) == WORKER_LOST for event in span.events)


def otlp_processor(exporter: SpanExporter | None = None, *, seconds: float = DELAY_SECONDS) -> DelayedSpanProcessor:
    """The processor that exports by OTLP, as the environment says.

    Args:
        exporter: In place of OTLP's own.
        seconds: The delay.
    """
    retrying = RetryingExporter(exporter or otlp.span_exporter())
    schedule = None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else _BATCH_MILLISECONDS
    batches = BatchSpanProcessor(retrying, schedule_delay_millis=schedule)
    return DelayedSpanProcessor(batches, seconds, retrying)


class DelayedSpanProcessor(SpanProcessor):
    """Passes spans on to `processor` half a second after their end; parents and those of lost attempts at once.

    A span ends some milliseconds before Temporal has the result of its activity. A worker that is killed between the two
    must not have exported the span, as the next worker does the work again and writes a span of it again. So a killed
    worker loses the spans of its last second (this delay, and the batch), and no work is in a trace twice.

    Args:
        processor: Exports spans in batches.
        seconds: The delay.
        exporter: The exporter of `processor`. Without it, a run always waits for the export of parent spans.
    """

    def __init__(
        self,
        processor: SpanProcessor,
        seconds: float = DELAY_SECONDS,
        exporter: RetryingExporter | None = None,
    ) -> None:
        self._processor = processor
        self._seconds = seconds
        self._exporter = exporter
        self._delayed: deque[tuple[float, ReadableSpan]] = deque()
        self._stopped = threading.Event()
        self._passing_on = threading.Lock()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="mulligan-parents")
        self._exports: set[Future[bool]] = set()
        threading.Thread(target=self._run_until_stopped, name="mulligan-spans", daemon=True).start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Pass the start on at once."""
        self._processor.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Delay the span, or export it at once. After `shutdown`, drop it (OpenTelemetry's rule)."""
        if self._stopped.is_set() or span.context is None or not span.context.trace_flags.sampled:
            return
        if is_parent_span(span) or is_of_lost_attempt(span):
            # With the batch, not by an exporter of its own: a receiver that is slow must not get it from both.
            self._processor.on_end(span)
            # While the collector does not answer, the next batch has it: flushes would pile up.
            if self._exporter is None or self._exporter.answers:
                export = self._executor.submit(self._processor.force_flush)
                self._exports.add(export)
                export.add_done_callback(self._exports.discard)
        else:
            self._delayed.append((time.monotonic() + self._seconds, span))

    async def wait_for_parent_spans(self) -> None:
        """Wait until the parent spans that have ended are exported, at most `PARENT_EXPORT_SECONDS`. Return at once while
        the collector does not answer.
        """
        if self._exporter is not None and not self._exporter.answers:
            return
        if exports := [asyncio.wrap_future(export) for export in tuple(self._exports)]:
            _, late = await asyncio.wait(exports, timeout=PARENT_EXPORT_SECONDS)
            if late and self._exporter is not None:
                self._exporter.answers = False

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export now what has ended."""
        self._pass_on(float("inf"))
        return self._processor.force_flush(timeout_millis)

    def shutdown(self) -> None:
        """Export what has ended, and stop."""
        self._stopped.set()
        if self._exporter is not None:
            self._exporter.stop_retrying()
        self._executor.shutdown()
        self._pass_on(float("inf"))
        self._processor.shutdown()

    def _run_until_stopped(self) -> None:
        # Without this, a worker that is killed during its first run could lose the run's parent span.
        if self._exporter is not None and otlp.is_reachable():
            self._exporter.answers = True
        while not self._stopped.wait(_CHECK_SECONDS):
            self._pass_on(time.monotonic())

    def _pass_on(self, now: float) -> None:
        with self._passing_on:
            while self._delayed and self._delayed[0][0] <= now:
                self._processor.on_end(self._delayed.popleft()[1])
