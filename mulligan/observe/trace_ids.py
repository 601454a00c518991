"""Whose child a span is, and its id: all derived from the run, the step and the call, so that nobody need be told.

What is recorded again, by a retry or another worker, has the same id. `parent` and `trace` are W3C traceparents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, TraceFlags, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mulligan.observe import semconv
from mulligan.run_input import ResumedFrom

STEPS_IN_A_GROUP = 100
"""From the second hundred of steps on, each hundred has a span of its own: thousands of spans below one are not readable."""

_PROPAGATOR = TraceContextTextMapPropagator()
_span_id: ContextVar[int | None] = ContextVar("span_id", default=None)
_trace_id: ContextVar[int | None] = ContextVar("trace_id", default=None)


class DerivedIds(RandomIdGenerator):
    """Ids that the caller has chosen; random ones for spans of users' own code."""

    def generate_span_id(self) -> int:
        """The one chosen for the block, if any."""
        return _span_id.get() or super().generate_span_id()

    def generate_trace_id(self) -> int:
        """The one chosen for the block, if any."""
        return _trace_id.get() or super().generate_trace_id()


@contextmanager
def chosen(span_id: int, trace_id: int | None = None) -> Iterator[None]:
    """The ids of the span that is started in the block."""
    span_token, trace_token = _span_id.set(span_id), _trace_id.set(trace_id)
    try:
        yield
    finally:
        _span_id.reset(span_token)
        _trace_id.reset(trace_token)


def derive(bits: int, *parts: object) -> int:
    """An id that is the same whenever the same thing is recorded again. Never 0, which OpenTelemetry calls invalid."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode(errors="replace")).digest()
    return int.from_bytes(digest[: bits // 8], "big") or 1


def trace_id_of_run(workflow_id: str, first_run_id: str) -> str:
    """The trace of a run that joins no other."""
    return f"{derive(128, 'trace', workflow_id, first_run_id):032x}"


def parent_of_step(trace: str, step: int) -> str:
    """What the spans of a step hang on: the run, or the hundred that the step belongs to."""
    if step <= STEPS_IN_A_GROUP:
        return trace
    version, trace_id, _, flags = trace.split("-")
    return f"{version}-{trace_id}-{derive(64, trace, *group(step)):016x}-{flags}"


def group(step: int) -> tuple[str, int]:
    """The key of the hundred that a step belongs to."""
    return "steps", (step - 1) // STEPS_IN_A_GROUP


def context_of(traceparent: str) -> Context:
    """The context in which a child of one of our own spans is started."""
    _, trace_id, span_id, flags = traceparent.split("-")
    about = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return set_span_in_context(NonRecordingSpan(about), Context())


def context_of_caller(traceparent: str | None) -> Context:
    """The context of whoever started the run, if what it says of itself is a traceparent."""
    return _PROPAGATOR.extract({"traceparent": traceparent} if traceparent else {}, context=Context())


def resumption(resumed_from: ResumedFrom | None) -> dict[str, str]:
    """The attributes that say which run another one goes on from."""
    if resumed_from is None:
        return {}
    return {semconv.RESUMED_WORKFLOW: resumed_from.workflow_id, semconv.RESUMED_RUN: resumed_from.run_id}


def links_to(resumed_from: ResumedFrom | None) -> list[Link]:
    """The link to that run's `invoke_agent`."""
    before = get_current_span(context_of_caller(resumed_from.traceparent if resumed_from else None))
    return [Link(before.get_span_context())] if before.get_span_context().is_valid else []
