"""A real OTLP receiver on the loopback, gRPC and HTTP/protobuf, that records spans and metrics as simple values.

    with OtlpReceiver() as receiver:
        exporter = OTLPSpanExporter(endpoint=receiver.endpoint_grpc)
        ...
        (span,) = receiver.wait_for_spans(1, name="chat gpt-test")
        assert span.status == "ERROR", receiver.tree(span.trace_id)

It runs in its own threads: for tests with and without an event loop, and for exporters in other processes.
"""

from __future__ import annotations

import asyncio
import gzip
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NoReturn

import grpc  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

from tests.support.otlp_records import Metric, Point, Span, metrics_of, render_tree, spans_of

__all__ = ["Metric", "OtlpReceiver", "Point", "Span"]

THREADS = 16  # exports that may wait at once
GRPC_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "identity": bytes,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}


class OtlpReceiver:
    """The receiver; `with` (or `async with`) starts it on free ports and stops it."""

    def __init__(self, takes_metrics: bool = True) -> None:
        self.takes_metrics = takes_metrics  # if false, there is no such service, as with Jaeger
        self.refused_metrics = 0
        self.endpoint_grpc = ""
        self.endpoint_http = ""  # the base: exporters add /v1/traces and /v1/metrics
        self.attempts = 0  # received exports, accepted or not
        self._spans: list[Span] = []
        self._metrics: list[Metric] = []
        self._changed = threading.Condition()
        self._open = threading.Event()  # not set: exports wait
        self._open.set()
        self._refuse_with: int | None = None

    def __enter__(self) -> OtlpReceiver:
        self._grpc = grpc.server(ThreadPoolExecutor(THREADS), options=[("grpc.max_receive_message_length", -1)])
        trace_grpc.add_TraceServiceServicer_to_server(_TraceService(self), self._grpc)
        metrics_grpc.add_MetricsServiceServicer_to_server(_MetricsService(self), self._grpc)
        self.endpoint_grpc = f"http://127.0.0.1:{self._grpc.add_insecure_port('127.0.0.1:0')}"
        self._grpc.start()

        self._http = _HttpServer(self)
        self.endpoint_http = f"http://127.0.0.1:{self._http.server_address[1]}"
        # a short poll interval, because `shutdown` waits for it
        self._serving = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._serving.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._grpc.stop(grace=0.5).wait()
        self._http.shutdown()
        self._http.server_close()
        self._serving.join()

    async def __aenter__(self) -> OtlpReceiver:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        # an exporter may run on this loop: do not block it
        await asyncio.to_thread(self.__exit__)

    def environment(self, protocol: str = "grpc") -> dict[str, str]:
        """The environment with which a worker process exports here; `protocol` is "grpc" or "http/protobuf"."""
        endpoint = self.endpoint_grpc if protocol == "grpc" else self.endpoint_http
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}

    # --- received data

    def spans(self, trace_id: str | None = None, name: str | None = None) -> list[Span]:
        """The spans of a trace or with a name, in the order of their start."""
        with self._changed:
            found = [
                span
                for span in self._spans
                if (trace_id is None or span.trace_id == trace_id) and (name is None or span.name == name)
            ]
        return sorted(found, key=lambda span: span.start_ns)

    def metrics(self, name: str | None = None) -> list[Metric]:
        """The metrics in the order of arrival: a periodic exporter sends each of them many times."""
        with self._changed:
            return [metric for metric in self._metrics if name is None or metric.name == name]

    def tree(self, trace_id: str | None = None) -> str:
        """The trace (or all of them) as indented text, for the message of a failing test."""
        return render_tree(self.spans(trace_id))

    def clear(self) -> None:
        """Delete the data received so far."""
        with self._changed:
            self._spans.clear()
            self._metrics.clear()
            self.attempts = 0

    def wait_for_spans(
        self, count: int = 1, trace_id: str | None = None, name: str | None = None, timeout: float = 30
    ) -> list[Span]:
        """Wait until that many spans have arrived; fail with the tree of those that have."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: len(self.spans(trace_id, name)) >= count, timeout)
        found = self.spans(trace_id, name)
        if not arrived:
            wanted = f"{count} spans (trace {trace_id or 'any'}, name {name or 'any'}), have {len(found)}"
            raise AssertionError(f"waited {timeout} s for {wanted}:\n{self.tree(trace_id)}")
        return found

    def wait_for_attempts(self, count: int, timeout: float = 30) -> None:
        """Wait until that many exports have arrived, waiting or not."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.attempts >= count, timeout):
                raise AssertionError(f"waited {timeout} s for {count} exports, {self.attempts} came")

    async def spans_arrived(
        self, count: int = 1, trace_id: str | None = None, name: str | None = None, timeout: float = 30
    ) -> list[Span]:
        """`wait_for_spans` for tests on an event loop."""
        return await asyncio.to_thread(self.wait_for_spans, count, trace_id, name, timeout)

    # --- simulated faults

    def hold(self) -> None:
        """Let every export wait for its response until `release`."""
        self._open.clear()

    def release(self) -> None:
        """Answer the waiting exports, and later ones at once."""
        self._open.set()

    def refuse(self, status: int = 503) -> None:
        """Refuse every export: 503 and 429 may be retried, 400 and 401 may not; gRPC gets the corresponding code."""
        self._refuse_with = status

    def accept(self) -> None:
        """Accept exports again."""
        self._refuse_with = None

    def receive(self, spans: list[Span], metrics: list[Metric]) -> int | None:
        """Record one export, or return the status with which it is refused."""
        with self._changed:
            self.attempts += 1
            self._changed.notify_all()
        self._open.wait()
        with self._changed:
            if self._refuse_with is None:
                self._spans += spans
                self._metrics += metrics
                self._changed.notify_all()
            return self._refuse_with


def abort(context: Any, status: int) -> NoReturn:
    """End a gRPC call with the code that corresponds to an HTTP status."""
    context.abort(GRPC_CODES.get(status, grpc.StatusCode.UNKNOWN), "told to refuse")
    raise AssertionError("abort raises")


class _TraceService(trace_grpc.TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: trace_pb2.ExportTraceServiceRequest, context: Any) -> Any:
        if status := self._receiver.receive(spans_of(request), []):
            abort(context, status)
        return trace_pb2.ExportTraceServiceResponse()


class _MetricsService(metrics_grpc.MetricsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: metrics_pb2.ExportMetricsServiceRequest, context: Any) -> Any:
        if not self._receiver.takes_metrics:
            self._receiver.refused_metrics += 1
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown service")
        if status := self._receiver.receive([], metrics_of(request)):
            abort(context, status)
        return metrics_pb2.ExportMetricsServiceResponse()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, receiver: OtlpReceiver) -> None:
        super().__init__(("127.0.0.1", 0), _HttpHandler)
        self.receiver = receiver


class _HttpHandler(BaseHTTPRequestHandler):
    server: _HttpServer

    def do_POST(self) -> None:
        status, body = self._receive()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:  # the exporter timed out while its export waited
            self.close_connection = True

    def _receive(self) -> tuple[int, bytes]:
        payload = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        unpack = UNPACK.get(self.headers.get("Content-Encoding", ""))
        if unpack is None or self.headers.get_content_type() != "application/x-protobuf":
            return 415, b""
        try:
            if self.path == "/v1/traces":
                traces = trace_pb2.ExportTraceServiceRequest.FromString(unpack(payload))
                refused = self.server.receiver.receive(spans_of(traces), [])
                return refused or 200, trace_pb2.ExportTraceServiceResponse().SerializeToString()
            if self.path == "/v1/metrics" and not self.server.receiver.takes_metrics:
                self.server.receiver.refused_metrics += 1
                return 404, b""
            if self.path == "/v1/metrics":
                metrics = metrics_pb2.ExportMetricsServiceRequest.FromString(unpack(payload))
                refused = self.server.receiver.receive([], metrics_of(metrics))
                return refused or 200, metrics_pb2.ExportMetricsServiceResponse().SerializeToString()
        except (DecodeError, OSError, EOFError, zlib.error):
            return 400, b""
        return 404, b""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Log nothing."""
