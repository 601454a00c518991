"""Reads OpenTelemetry's environment variables: whether, where and how traces and metrics are exported by OTLP."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Literal

from opentelemetry.sdk.resources import SERVICE_NAME, Resource

__all__ = [
    "Signal",
    "captures_content",
    "endpoint_of",
    "is_configured",
    "metric_exporter",
    "over_http",
    "resource",
    "span_exporter",
]

Signal = Literal["TRACES", "METRICS"]


def is_configured(environ: Mapping[str, str] = os.environ, signal: Signal = "TRACES") -> bool:
    """Whether an OTLP endpoint for the signal is set, and OpenTelemetry is not switched off."""
    switched_off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return bool(endpoint_of(environ, signal)) and not switched_off and environ.get(f"OTEL_{signal}_EXPORTER") != "none"


def captures_content(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether spans may carry prompts, arguments and results: only by opt-in."""
    value = environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "").strip().lower()
    return value in {"true", "1", "span_only", "span_and_event"}


def endpoint_of(environ: Mapping[str, str], signal: Signal) -> str:
    """The URL that the signal is exported to; "" if none is set."""
    return environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")


def over_http(environ: Mapping[str, str], signal: Signal) -> bool:
    """Whether the protocol is HTTP. If none is set it is gRPC, but HTTP at HTTP's own port, 4318."""
    protocol = environ.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    is_http_port = re.search(r":4318(?!\d)", endpoint_of(environ, signal)) is not None
    return protocol.startswith("http") or (not protocol and is_http_port)


def span_exporter(environ: Mapping[str, str] = os.environ, timeout: float | None = None) -> Any:
    """The exporter for spans. It reads endpoint, headers and certificates from the environment itself.

    `timeout`: seconds for one export with all its retries, in place of the environment's.
    """
    if over_http(environ, "TRACES"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHTTP

        return OverHTTP(timeout=timeout)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGRPC

    return OverGRPC(timeout=timeout)


def metric_exporter(environ: Mapping[str, str] = os.environ) -> Any:
    """The exporter for metrics."""
    if over_http(environ, "METRICS"):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as OverHTTP

        return OverHTTP()
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as OverGRPC

    return OverGRPC()


def resource() -> Resource:
    """The resource: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override the default service name, `mulligan-worker`."""
    ours = Resource.create()
    if str(ours.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        ours = ours.merge(Resource({SERVICE_NAME: "mulligan-worker"}))
    return ours
