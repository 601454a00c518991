"""Spans of a supervised worker: each is sent to the supervisor when it ends, and exported there.

The supervisor outlives the worker, so a worker that is killed loses no span; and it can ask the server whether the attempt
that wrote a span counts, before it exports the span. If the supervisor dies, the worker exports the spans itself, those too
that the supervisor had not exported yet.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from mulligan.observe.span_export import PARENT_EXPORT_SECONDS, DelayedSpanProcessor, is_parent_span, otlp_processor

MAX_UNACKNOWLEDGED = 20_000
"""How many spans a worker keeps until its supervisor has exported them."""


class ForwardedSpans(SpanProcessor):
    """Sends each span to the supervisor when it ends.

    Args:
        send: Sends a span: its number, and its JSON.
    """

    def __init__(self, send: Callable[[int, dict[str, Any]], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._number = 0
        self._unacknowledged: OrderedDict[int, ReadableSpan] = OrderedDict()
        self._parents: dict[int, asyncio.Event] = {}
        self._own: DelayedSpanProcessor | None = None
        self._acknowledges = False
        """Whether the supervisor exports, as far as is known: the last span that was waited for was exported in time."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: a span is sent when it ends."""

    def on_end(self, span: ReadableSpan) -> None:
        """Send the ended span to the supervisor."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            if self._own is not None:
                self._own.on_end(span)
                return
            self._number += 1
            number = self._number
            self._unacknowledged[number] = span
            if len(self._unacknowledged) > MAX_UNACKNOWLEDGED:
                self._unacknowledged.popitem(last=False)
            if self._acknowledges and is_parent_span(span):
                self._parents[number] = asyncio.Event()
            self._send(number, span_to_json(span))

    def acknowledge(self, number: int) -> None:
        """The supervisor has exported this span, or never will. On the event loop."""
        with self._lock:
            self._acknowledges = True
            self._unacknowledged.pop(number, None)
            if exported := self._parents.pop(number, None):
                exported.set()

    def export_here(self) -> None:
        """The supervisor has died: export what it has not exported, and all that follows."""
        with self._lock:
            if self._own is None:
                self._own = otlp_processor()
                for span in self._unacknowledged.values():
                    self._own.on_end(span)
                self._unacknowledged.clear()
            for exported in self._parents.values():
                exported.set()
            self._parents.clear()

    async def wait_for_parent_spans(self) -> None:
        """Wait until the parent spans that have ended are exported, at most `PARENT_EXPORT_SECONDS`. Return at once while
        the collector does not answer.
        """
        if waiting := [asyncio.ensure_future(exported.wait()) for exported in tuple(self._parents.values())]:
            _, late = await asyncio.wait(waiting, timeout=PARENT_EXPORT_SECONDS)
            for each in late:
                each.cancel()
            if late:
                with self._lock:
                    self._acknowledges = False
                    self._parents.clear()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export now what has ended, if this process exports."""
        return self._own is None or self._own.force_flush(timeout_millis)

    def shutdown(self) -> None:
        """Stop; export what has ended, if this process exports."""
        if self._own is not None:
            self._own.shutdown()


def span_to_json(span: ReadableSpan) -> dict[str, Any]:
    """An ended span as a JSON object. Its resource is not in it."""
    context, parent, scope = span.context, span.parent, span.instrumentation_scope
    assert context is not None
    return {
        "name": span.name,
        "context": _context_to_json(context),
        "parent": None if parent is None else _context_to_json(parent),
        "kind": span.kind.name,
        "attributes": dict(span.attributes or {}),
        "events": [(event.name, event.timestamp, dict(event.attributes or {})) for event in span.events],
        "links": [(_context_to_json(link.context), dict(link.attributes or {})) for link in span.links],
        "status": (span.status.status_code.name, span.status.description),
        "start": span.start_time,
        "end": span.end_time,
        "scope": (scope.name, scope.version) if scope else None,
    }


def span_from_json(data: Mapping[str, Any], resource: Resource) -> ReadableSpan:
    """The span that `span_to_json` has written, with this resource."""
    code, description = data["status"]
    return ReadableSpan(
        name=data["name"],
        context=_context_from_json(data["context"]),
        parent=_context_from_json(data["parent"]) if data["parent"] else None,
        resource=resource,
        kind=SpanKind[data["kind"]],
        attributes=data["attributes"],
        events=[Event(name, attributes, timestamp) for name, timestamp, attributes in data["events"]],
        links=[Link(_context_from_json(context), attributes) for context, attributes in data["links"]],
        status=Status(StatusCode[code], description),
        start_time=data["start"],
        end_time=data["end"],
        instrumentation_scope=InstrumentationScope(*data["scope"]) if data["scope"] else None,
    )


def _context_to_json(context: SpanContext) -> Sequence[Any]:
    return (context.trace_id, context.span_id, context.is_remote, int(context.trace_flags))


def _context_from_json(data: Sequence[Any]) -> SpanContext:
    trace_id, span_id, is_remote, flags = data
    return SpanContext(trace_id, span_id, is_remote, TraceFlags(flags))
