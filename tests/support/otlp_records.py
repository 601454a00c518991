"""Spans and metrics as simple values, converted from OTLP messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

STATUS = {0: "UNSET", 1: "OK", 2: "ERROR"}


@dataclass(frozen=True)
class Span:
    """A span as it was exported; ids in hex, `parent_span_id` empty for a root."""

    name: str
    trace_id: str
    span_id: str
    parent_span_id: str
    kind: str  # INTERNAL, CLIENT, ...
    status: str  # UNSET, OK, ERROR
    status_message: str
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    links: list[tuple[str, str]]  # trace id, span id
    start_ns: int
    end_ns: int
    resource: dict[str, Any]
    scope: str


@dataclass(frozen=True)
class Point:
    """A data point: a number, or the sum and the count of a histogram."""

    attributes: dict[str, Any]
    value: float
    count: int | None = None


@dataclass(frozen=True)
class Metric:
    """A metric of one export."""

    name: str
    unit: str
    kind: str  # sum, gauge, histogram, exponential_histogram, summary
    points: list[Point]
    resource: dict[str, Any]
    scope: str


def spans_of(request: ExportTraceServiceRequest) -> list[Span]:
    """The spans of one export."""
    return [
        Span(
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_span_id=span.parent_span_id.hex(),
            kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
            status=STATUS[span.status.code],
            status_message=span.status.message,
            attributes=attributes_of(span.attributes),
            events=[(event.name, attributes_of(event.attributes)) for event in span.events],
            links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            resource=attributes_of(group.resource.attributes),
            scope=scoped.scope.name,
        )
        for group in request.resource_spans
        for scoped in group.scope_spans
        for span in scoped.spans
    ]


def metrics_of(request: ExportMetricsServiceRequest) -> list[Metric]:
    """The metrics of one export."""
    return [
        Metric(
            name=metric.name,
            unit=metric.unit,
            kind=metric.WhichOneof("data") or "",
            points=list(points_of(metric)),
            resource=attributes_of(group.resource.attributes),
            scope=scoped.scope.name,
        )
        for group in request.resource_metrics
        for scoped in group.scope_metrics
        for metric in scoped.metrics
    ]


def points_of(metric: metrics_pb2.Metric) -> Iterator[Point]:
    """The data points of a metric, whatever its kind."""
    kind = metric.WhichOneof("data")
    if kind is None:
        return
    for point in getattr(metric, kind).data_points:
        attributes = attributes_of(point.attributes)
        if kind in ("sum", "gauge"):
            yield Point(attributes, point.as_int if point.WhichOneof("value") == "as_int" else point.as_double)
        else:
            yield Point(attributes, point.sum, point.count)


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """Attributes as Python values."""
    return {pair.key: value_of(pair.value) for pair in pairs}


def value_of(value: AnyValue) -> Any:
    """One attribute's value."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    return getattr(value, kind)


def render_tree(spans: list[Span]) -> str:
    """Spans as indented text; orphans are marked, and duplicates are printed twice."""
    known = {(span.trace_id, span.span_id) for span in spans}
    children: dict[tuple[str, str], list[Span]] = {}
    roots: list[Span] = []
    for span in spans:
        parent = (span.trace_id, span.parent_span_id)
        if parent in known and span.parent_span_id != span.span_id:
            children.setdefault(parent, []).append(span)
        else:
            roots.append(span)
    shown: set[int] = set()

    def lines(span: Span, depth: int) -> Iterator[str]:
        lost = f" (parent {span.parent_span_id} is missing)" if depth == 0 and span.parent_span_id else ""
        told = f": {span.status_message}" if span.status_message else ""
        yield f"{'  ' * depth}{span.name} [{span.kind} {span.status}{told}]{lost} {span.attributes}"
        for name, attributes in span.events:
            yield f"{'  ' * depth}  * {name} {attributes}"
        shown.add(id(span))
        for child in children.get((span.trace_id, span.span_id), []):
            if id(child) not in shown:  # the children of a duplicated span are printed once
                yield from lines(child, depth + 1)

    return "\n".join(line for root in roots for line in lines(root, 0)) or "(no spans)"
