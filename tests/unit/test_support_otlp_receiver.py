"""The OTLP receiver with the real exporters of both protocols."""

from __future__ import annotations

import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import SpanKind, Status, StatusCode

from tests.support.otlp_receiver import OtlpReceiver

RESOURCE = Resource({"service.name": "tried"})

SPAN_EXPORTERS: dict[str, Callable[[OtlpReceiver], SpanExporter]] = {
    "grpc": lambda receiver: GrpcSpanExporter(endpoint=receiver.endpoint_grpc),
    "http": lambda receiver: HttpSpanExporter(endpoint=receiver.endpoint_http + "/v1/traces"),
    "http, gzip": lambda receiver: HttpSpanExporter(
        endpoint=receiver.endpoint_http + "/v1/traces", compression=Compression.Gzip
    ),
    "http, deflate": lambda receiver: HttpSpanExporter(
        endpoint=receiver.endpoint_http + "/v1/traces", compression=Compression.Deflate
    ),
}
METRIC_EXPORTERS: dict[str, Callable[[OtlpReceiver], MetricExporter]] = {
    "grpc": lambda receiver: GrpcMetricExporter(endpoint=receiver.endpoint_grpc),
    "http": lambda receiver: HttpMetricExporter(endpoint=receiver.endpoint_http + "/v1/metrics"),
}


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as running:
        yield running


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture):
    # the exporters log each failure, which is expected here
    caplog.set_level(logging.CRITICAL, logger="opentelemetry")


def make_spans(provider: TracerProvider) -> None:
    tracer = provider.get_tracer("tests")
    with tracer.start_as_current_span("root") as root:
        root.set_attributes({"text": "a", "n": 7, "share": 0.5, "yes": True, "list": ["a", "b"]})
        with tracer.start_as_current_span("call", kind=SpanKind.CLIENT) as call:
            call.add_event("exception", {"exception.type": "ValueError"})
            call.set_status(Status(StatusCode.ERROR, "it broke"))


@pytest.mark.parametrize("make", SPAN_EXPORTERS.values(), ids=SPAN_EXPORTERS.keys())
def test_spans_are_received_as_simple_values(receiver: OtlpReceiver, make: Callable[[OtlpReceiver], SpanExporter]):
    provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(make(receiver)))
    make_spans(provider)
    provider.shutdown()

    root, call = receiver.wait_for_spans(2)
    assert (root.name, root.parent_span_id, root.kind, root.status) == ("root", "", "INTERNAL", "UNSET")
    assert root.attributes == {"text": "a", "n": 7, "share": 0.5, "yes": True, "list": ["a", "b"]}
    assert (root.resource, root.scope) == ({"service.name": "tried"}, "tests")
    assert (len(root.trace_id), len(root.span_id)) == (32, 16)
    assert (call.trace_id, call.parent_span_id, call.kind) == (root.trace_id, root.span_id, "CLIENT")
    assert (call.status, call.status_message) == ("ERROR", "it broke")
    assert call.events == [("exception", {"exception.type": "ValueError"})]
    assert root.start_ns <= call.start_ns <= call.end_ns <= root.end_ns
    assert receiver.spans(name="call") == receiver.spans(root.trace_id, "call") == [call]
    assert receiver.spans(trace_id="0" * 32) == []
    assert receiver.tree(root.trace_id).splitlines() == [
        f"root [INTERNAL UNSET] {root.attributes}",
        "  call [CLIENT ERROR: it broke] {}",
        "    * exception {'exception.type': 'ValueError'}",
    ]


@pytest.mark.parametrize("make", METRIC_EXPORTERS.values(), ids=METRIC_EXPORTERS.keys())
def test_metrics_are_received_as_simple_values(receiver: OtlpReceiver, make: Callable[[OtlpReceiver], MetricExporter]):
    reader = PeriodicExportingMetricReader(make(receiver))
    provider = MeterProvider([reader], resource=RESOURCE, shutdown_on_exit=False)
    meter = provider.get_meter("tests")
    meter.create_counter("calls", unit="{call}").add(2, {"tool": "f"})
    duration = meter.create_histogram("duration", unit="s")
    duration.record(1.5, {"tool": "f"})
    duration.record(2.5, {"tool": "f"})
    provider.shutdown()

    (calls,) = receiver.metrics("calls")
    assert (calls.unit, calls.kind, calls.resource) == ("{call}", "sum", {"service.name": "tried"})
    assert [(point.attributes, point.value) for point in calls.points] == [({"tool": "f"}, 2)]
    (took,) = receiver.metrics("duration")
    assert [(point.value, point.count) for point in took.points] == [(4.0, 2)]
    assert [metric.name for metric in receiver.metrics()] == ["calls", "duration"]


def finished_spans() -> list[ReadableSpan]:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    make_spans(provider)
    return list(memory.get_finished_spans())


@pytest.mark.parametrize("make", SPAN_EXPORTERS.values(), ids=SPAN_EXPORTERS.keys())
def test_the_receiver_can_refuse_and_accept_again(receiver: OtlpReceiver, make: Callable[[OtlpReceiver], SpanExporter]):
    exporter, spans = make(receiver), finished_spans()
    receiver.refuse(400)  # not retryable
    assert exporter.export(spans) is SpanExportResult.FAILURE
    assert (receiver.attempts, receiver.spans()) == (1, [])
    receiver.accept()
    assert exporter.export(spans) is SpanExportResult.SUCCESS
    assert len(receiver.spans()) == 2
    receiver.clear()
    assert (receiver.attempts, receiver.spans()) == (0, [])
    exporter.shutdown()


@pytest.mark.parametrize("make", SPAN_EXPORTERS.values(), ids=SPAN_EXPORTERS.keys())
def test_the_receiver_can_let_exporters_wait(receiver: OtlpReceiver, make: Callable[[OtlpReceiver], SpanExporter]):
    exporter, spans, results = make(receiver), finished_spans(), []
    receiver.hold()
    exporting = threading.Thread(target=lambda: results.append(exporter.export(spans)))
    exporting.start()
    receiver.wait_for_attempts(1)
    assert (results, receiver.spans()) == ([], [])
    receiver.release()
    exporting.join()
    assert results == [SpanExportResult.SUCCESS]
    assert len(receiver.spans()) == 2
    exporter.shutdown()


async def test_the_receiver_can_be_used_on_an_event_loop():
    async with OtlpReceiver() as receiver:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(SPAN_EXPORTERS["grpc"](receiver)))
        make_spans(provider)
        provider.force_flush()
        assert [span.name for span in await receiver.spans_arrived(2)] == ["root", "call"]
        provider.shutdown()


def test_waiting_for_missing_spans_reports_the_received_ones(receiver: OtlpReceiver):
    exporter = SPAN_EXPORTERS["http"](receiver)
    root = next(span for span in finished_spans() if span.name == "root")
    exporter.export([root])
    with pytest.raises(AssertionError, match=r"1 spans \(trace any, name chat\), have 0:\nroot \[INTERNAL UNSET\]"):
        receiver.wait_for_spans(1, name="chat", timeout=0)
    exporter.shutdown()


def test_the_tree_marks_duplicate_and_orphaned_spans(receiver: OtlpReceiver):
    exporter = SPAN_EXPORTERS["http"](receiver)
    call, root = finished_spans()
    assert receiver.tree() == "(no spans)"
    exporter.export([call])
    assert f"(parent {root.context.span_id:016x} is missing)" in receiver.tree()
    exporter.export([root])
    exporter.export([root])
    assert [line.split(" ")[0] for line in receiver.tree().splitlines() if "* " not in line] == ["root", "", "root"]
    exporter.shutdown()


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        ("/v1/logs", {}, b"", 404),
        ("/v1/traces", {"Content-Type": "application/json"}, b"{}", 415),
        ("/v1/traces", {"Content-Encoding": "br"}, b"", 415),
        ("/v1/traces", {}, b"\xff\xff", 400),
        ("/v1/metrics", {"Content-Encoding": "gzip"}, b"no gzip", 400),
    ],
)
def test_the_http_receiver_refuses_invalid_requests(
    receiver: OtlpReceiver, path: str, headers: dict[str, str], body: bytes, status: int
):
    whole: dict[str, Any] = {"Content-Type": "application/x-protobuf", **headers}
    request = urllib.request.Request(receiver.endpoint_http + path, data=body, headers=whole)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    with refused.value:
        assert refused.value.code == status


def test_the_environment_contains_the_endpoint_of_the_receiver(receiver: OtlpReceiver):
    assert receiver.environment() == {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint_grpc,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    assert receiver.environment("http/protobuf")["OTEL_EXPORTER_OTLP_ENDPOINT"] == receiver.endpoint_http
