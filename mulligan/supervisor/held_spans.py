"""Holds the spans of worker processes until it is known whether they count, and exports those that do.

A span ends some milliseconds before the server has the result of its attempt. If the process dies in between, the next
attempt does the work again and writes its own spans: those of the lost attempt must not be exported. So the spans of an
attempt are exported when the attempt has been over for half a second; if the process dies before that, the server is asked
(`lost_work.py`). A run's parent spans are exported at once, and no span is exported twice: ids are derived from the run.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from mulligan.observe import otlp
from mulligan.observe.forwarded_spans import span_from_json
from mulligan.observe.span_export import (
    DELAY_SECONDS,
    DelayedSpanProcessor,
    is_of_lost_attempt,
    is_parent_span,
    otlp_processor,
)
from mulligan.supervisor.worker_process import Attempt, WorkerProcess

MAX_REMEMBERED = 50_000
"""How many ids of exported spans are remembered, so that none is exported twice."""
SECONDS_BETWEEN_CHECKS = 0.1

_SpanId = tuple[int, int]
"""Trace and span."""


class HeldSpans:
    """The spans of all processes of a supervisor."""

    def __init__(self) -> None:
        self._held: defaultdict[tuple[WorkerProcess, int], list[tuple[int, ReadableSpan]]] = defaultdict(list)
        """By process and number of the attempt; each with its number in the process."""
        self._due: dict[tuple[WorkerProcess, int], float] = {}
        """When the spans of an attempt that has ended are exported."""
        self._exported: OrderedDict[_SpanId, tuple[WorkerProcess, int]] = OrderedDict()
        self._processor: DelayedSpanProcessor | None = None
        self._resource = otlp.resource()
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextmanager
    def exporting(self) -> Iterator[None]:
        """Export while the block runs, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        checking = self._loop.create_task(self._check_until_cancelled())
        try:
            yield
        finally:
            checking.cancel()

    async def close(self) -> None:
        """Export what is held, and stop."""
        for key in tuple(self._held):
            self._export_held(key)
        if self._processor is not None:
            await asyncio.to_thread(self._processor.shutdown)

    def add(self, process: WorkerProcess, attempt: int, message: Mapping[str, Any]) -> None:
        """Take a span from a process. `attempt`: the number of the attempt in which it ended; 0: none."""
        number, span = message["number"], span_from_json(message["span"], self._resource)
        if is_parent_span(span) or is_of_lost_attempt(span) or attempt not in process.attempts:
            self._export(process, number, span)
        else:
            self._held[process, attempt].append((number, span))

    def release(self, process: WorkerProcess, attempt: int) -> None:
        """An attempt has ended in its process: export its spans soon."""
        if (process, attempt) in self._held:
            self._due[process, attempt] = time.monotonic() + DELAY_SECONDS

    def held_attempts(self, process: WorkerProcess) -> frozenset[int]:
        """The numbers of the attempts whose spans are held."""
        return frozenset(attempt for each, attempt in self._held if each is process)

    def settle(self, process: WorkerProcess, counts: Mapping[int, bool]) -> None:
        """A process has ended. `counts`: whether the spans of an attempt count, by its number; others do."""
        for key in [key for key in self._held if key[0] is process]:
            if counts.get(key[1], True):
                self._export_held(key)
            else:
                del self._held[key]
                self._due.pop(key, None)

    async def _check_until_cancelled(self) -> None:
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_CHECKS)
            now = time.monotonic()
            for key in [key for key, due in self._due.items() if due <= now and not self._waits(*key)]:
                self._export_held(key)

    def _waits(self, process: WorkerProcess, attempt: int) -> bool:
        """Whether it is too early: a dead process is being settled, or the workflow task of a local activity goes on."""
        if process.unready == "ended":
            return True
        body = next((body for _, number, body in reversed(process.finished) if number == attempt), None)
        if body is None:
            return False
        local = Attempt.parse(attempt, body)
        if local.token:
            return False
        running = (Attempt.parse(number, body) for number, body in process.attempts.items())
        return any(not each.token and each.run == local.run for each in running)

    def _export_held(self, key: tuple[WorkerProcess, int]) -> None:
        self._due.pop(key, None)
        for number, span in self._held.pop(key, ()):
            self._export(key[0], number, span)

    def _export(self, process: WorkerProcess, number: int, span: ReadableSpan) -> None:
        assert span.context is not None
        span_id = span.context.trace_id, span.context.span_id
        if span_id in self._exported:
            process.acknowledge(number)
            return
        self._exported[span_id] = process, number
        if len(self._exported) > MAX_REMEMBERED:
            self._exported.popitem(last=False)
        if self._processor is None:
            self._processor = otlp_processor(_Acknowledging(otlp.span_exporter(), self._acknowledge_later), seconds=0)
        self._processor.on_end(span)

    def _acknowledge_later(self, spans: Sequence[ReadableSpan]) -> None:
        ids = [(span.context.trace_id, span.context.span_id) for span in spans if span.context is not None]
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._acknowledge, ids)

    def _acknowledge(self, ids: Sequence[_SpanId]) -> None:
        for span_id in ids:
            if span_id in self._exported:
                process, number = self._exported[span_id]
                process.acknowledge(number)


class _Acknowledging(SpanExporter):
    """Exports by another exporter, and calls a function with the spans of each export that succeeded, in its thread."""

    def __init__(self, exporter: SpanExporter, on_exported: Callable[[Sequence[ReadableSpan]], None]) -> None:
        self._exporter = exporter
        self._on_exported = on_exported

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export; the other exporter retries."""
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._on_exported(spans)
        return result

    def shutdown(self) -> None:
        """Shut the exporter down."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the exporter: nothing is kept here."""
        return self._exporter.force_flush(timeout_millis)
