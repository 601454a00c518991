"""When spans leave this process: a run's parents at once, all others once what they tell of is sure to stand."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, Context, attach, detach, set_value
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from mulligan.observe import otlp
from mulligan.observe.semconv import AGENT_STEPS, INVOKE_AGENT

__all__ = ["DelayedSpanProcessor", "exporting"]

HELD_SECONDS = 0.5
PARENT_SECONDS = 1.0
"""How long a run waits for the export of a span that others hang on. After that the batch has it."""
_BATCH_MILLISECONDS = 200
_LOOK_SECONDS = 0.1


def exporting() -> DelayedSpanProcessor:
    """The processor that exports by OTLP, as the environment says."""
    delay = None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else _BATCH_MILLISECONDS
    batch = BatchSpanProcessor(otlp.span_exporter(), schedule_delay_millis=delay)
    return DelayedSpanProcessor(batch, otlp.span_exporter(timeout=PARENT_SECONDS))


class DelayedSpanProcessor(SpanProcessor):
    """Hands spans on to `processor` half a second after their end; `invoke_agent` and `agent.steps` to `parents`, at once.

    A span ends some milliseconds before Temporal has the result of its activity. A worker that is killed between the two
    must not have exported it: the next worker does the work again, and would tell of it a second time. So what such a
    worker loses is the spans of its last second (the hold, and the batch), and nothing is ever there twice.
    """

    def __init__(self, processor: SpanProcessor, parents: SpanExporter, seconds: float = HELD_SECONDS) -> None:
        self._processor = processor
        self._parents = parents
        self._seconds = seconds
        self._held: deque[tuple[float, ReadableSpan]] = deque()
        self._stopped = threading.Event()
        self._handing_on = threading.Lock()
        self._senders = ThreadPoolExecutor(4, thread_name_prefix="mulligan-parents")
        self._sending: set[Future[None]] = set()
        threading.Thread(target=self._until_stopped, name="mulligan-spans", daemon=True).start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing is held back of a start."""
        self._processor.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Hold it, or send it if others hang on it."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if span.name == AGENT_STEPS or span.name.startswith(f"{INVOKE_AGENT} "):
            sending = self._senders.submit(self._send, span)
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
        else:
            self._held.append((time.monotonic() + self._seconds, span))

    async def parents_sent(self) -> None:
        """Wait until the parents that have ended are exported, or cannot be in time."""
        if sending := [asyncio.wrap_future(future) for future in tuple(self._sending)]:
            await asyncio.wait(sending, timeout=PARENT_SECONDS)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export all that has ended, now."""
        self._hand_on(float("inf"))
        return self._processor.force_flush(timeout_millis)

    def shutdown(self) -> None:
        """Export all that has ended, and stop."""
        self._stopped.set()
        self._senders.shutdown()
        self._hand_on(float("inf"))
        self._processor.shutdown()
        self._parents.shutdown()

    def _send(self, span: ReadableSpan) -> None:
        token = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        try:
            result = self._parents.export((span,))
        finally:
            detach(token)
        if result is not SpanExportResult.SUCCESS:
            # The batch tries for longer. A copy that came through after all is the very same span.
            self._processor.on_end(span)

    def _until_stopped(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            self._hand_on(time.monotonic())

    def _hand_on(self, now: float) -> None:
        with self._handing_on:
            while self._held and self._held[0][0] <= now:
                self._processor.on_end(self._held.popleft()[1])
