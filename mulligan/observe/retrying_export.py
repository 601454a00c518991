"""Exports spans again after an outage of the collector: the OTLP exporter by itself drops them after ten seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

OUTAGE_SECONDS = 60.0
"""How long an outage may last. Spans that end in the meantime wait in the batch processor's queue."""
REFUSED_WITHIN = 0.5
"""Seconds. An export that has failed sooner was refused (401, 400, too large) and would be again: after an error that may be
temporary, the exporter waits for at least 0.8 s and tries again."""
SECONDS_BETWEEN = 1.0


class RetryingExporter(SpanExporter):
    """Exports by `exporter`, which tries for ten seconds (`OTEL_EXPORTER_OTLP_TIMEOUT`), again and again for a minute.

    Attributes:
        answers: Whether the collector answers, as far as is known: it was reached, and the last export succeeded.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self.answers = False
        self._exporter = exporter
        self._stopping = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export; blocks during an outage."""
        until = time.monotonic() + OUTAGE_SECONDS
        while True:
            began = time.monotonic()
            result = self._exporter.export(spans)
            ended = time.monotonic()
            self.answers = result is SpanExportResult.SUCCESS
            if self.answers or ended - began < REFUSED_WITHIN or ended > until:
                return result
            if self._stopping.wait(SECONDS_BETWEEN):
                return result

    def stop_retrying(self) -> None:
        """Give up on exports that fail from now on: this process ends."""
        self._stopping.set()

    def shutdown(self) -> None:
        """Retry no longer, and shut the exporter down."""
        self._stopping.set()
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the exporter: nothing is kept here."""
        return self._exporter.force_flush(timeout_millis)
