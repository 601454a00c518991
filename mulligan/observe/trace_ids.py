"""The ids of spans and of their parents: derived from the run, the step and the call, so that every worker knows them.

A span that is written again, by a retry or another worker, has the same id. `parent` and `trace` are W3C traceparents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

STEPS_IN_A_GROUP = 100
"""From step 101 on, each hundred steps have a parent span of their own: no viewer shows thousands of siblings well."""

_PROPAGATOR = TraceContextTextMapPropagator()
_span_id: ContextVar[int | None] = ContextVar("span_id", default=None)
_trace_id: ContextVar[int | None] = ContextVar("trace_id", default=None)


class DerivedIds(RandomIdGenerator):
    """The ids that `use_ids` has set; random ids for the spans of users' own code."""

    def generate_span_id(self) -> int:
        """The span id that is set, or a random one."""
        return _span_id.get() or super().generate_span_id()

    def generate_trace_id(self) -> int:
        """The trace id that is set, or a random one."""
        return _trace_id.get() or super().generate_trace_id()


@contextmanager
def use_ids(span_id: int, trace_id: int) -> Iterator[None]:
    """Set the ids of the span that is started in the block."""
    span_token, trace_token = _span_id.set(span_id), _trace_id.set(trace_id)
    try:
        yield
    finally:
        _span_id.reset(span_token)
        _trace_id.reset(trace_token)


def derive(bits: int, *parts: object) -> int:
    """An id of `bits` bits that is the same for the same parts. Never 0, which is invalid in OpenTelemetry."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode(errors="replace")).digest()
    return int.from_bytes(digest[: bits // 8], "big") or 1


def trace_id_of_run(workflow_id: str, first_run_id: str) -> str:
    """The trace of a run that joins no other trace."""
    return f"{derive(128, 'trace', workflow_id, first_run_id):032x}"


def parent_of_step(trace: str, step: int) -> str:
    """The parent of a step's spans: the run, or from step 101 on the group of a hundred that the step belongs to."""
    if step <= STEPS_IN_A_GROUP:
        return trace
    version, trace_id, _, flags = trace.split("-")
    return f"{version}-{trace_id}-{derive(64, trace, *group_key(step)):016x}-{flags}"


def begins_group(step: int) -> bool:
    """Whether a group of a hundred steps that has a span of its own begins with this step."""
    return step > STEPS_IN_A_GROUP and step % STEPS_IN_A_GROUP == 1


def group_key(step: int) -> tuple[str, int]:
    """What the id of the step's group is derived from, beside the run's trace."""
    return "steps", (step - 1) // STEPS_IN_A_GROUP


def context_of(traceparent: str) -> Context:
    """The context in which a child of one of our own spans is started; for "" that of a root."""
    if not traceparent:
        return Context()
    _, trace_id, span_id, flags = traceparent.split("-")
    parent = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return set_span_in_context(NonRecordingSpan(parent), Context())


def context_of_caller(traceparent: str | None) -> Context:
    """The context of the run's caller; an empty one if the text is not a valid traceparent."""
    return _PROPAGATOR.extract({"traceparent": traceparent} if traceparent else {}, context=Context())
