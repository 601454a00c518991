"""Reads OpenTelemetry's environment variables: whether, where and how traces and metrics are exported by OTLP."""

from __future__ import annotations

import base64
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from typing import Any, Literal
from urllib.parse import unquote

from opentelemetry.sdk.resources import HOST_NAME, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.util.re import parse_env_headers

from mulligan.schema.url_parts import url_parts

Signal = Literal["TRACES", "METRICS"]
CONNECT_SECONDS = 1.0
HOST_ADDRESS = "ip"
"""Jaeger compares the clocks of spans unless they have the same `ip`, and then warns of each span that is not within its
parent's time: nearly all of a run's are not, as `invoke_agent` ends when the run begins."""


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


def is_reachable(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether something accepts TCP connections at the endpoint of traces. Nothing is sent."""
    endpoint = endpoint_of(environ, "TRACES")
    url = url_parts(endpoint if "://" in endpoint else f"//{endpoint}")
    with suppress(OSError, ValueError):  # ValueError: the port is no number
        address = (url.hostname or "", url.port or (443 if url.scheme == "https" else 80))
        socket.create_connection(address, CONNECT_SECONDS).close()
        return True
    return False


def over_http(environ: Mapping[str, str], signal: Signal) -> bool:
    """Whether the protocol is HTTP. If none is set it is gRPC, but HTTP at HTTP's own port, 4318."""
    protocol = environ.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    is_http_port = re.search(r":4318(?!\d)", endpoint_of(environ, signal)) is not None
    return protocol.startswith("http") or (not protocol and is_http_port)


def span_exporter(environ: Mapping[str, str] = os.environ, timeout: float | None = None) -> Any:
    """The exporter for spans. It reads endpoint, headers and certificates from the environment itself.

    `timeout`: seconds for one export with all its retries, in place of the environment's.
    """
    return import_span_exporter(environ)(timeout=timeout, **_without_credentials(environ, "TRACES"))


def import_span_exporter(environ: Mapping[str, str] = os.environ) -> Any:
    """The class of the exporter for spans. Its packages are imported by this call: some take a second."""
    if over_http(environ, "TRACES"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHTTP

        return OverHTTP
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGRPC

    return OverGRPC


def metric_exporter(environ: Mapping[str, str] = os.environ) -> Any:
    """The exporter for metrics."""
    if over_http(environ, "METRICS"):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as OverHTTP

        return OverHTTP(**_without_credentials(environ, "METRICS"))
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as OverGRPC

    return OverGRPC(**_without_credentials(environ, "METRICS"))


def _without_credentials(environ: Mapping[str, str], signal: Signal) -> dict[str, Any]:
    """Options of an exporter whose address has a user and a password (RFC 3986): they are sent as a header (RFC 7617).

    The exporters write the address to the log when an export fails.
    """
    endpoint = endpoint_of(environ, signal)
    url = url_parts(endpoint if "://" in endpoint else f"//{endpoint}")
    user, at, host = url.netloc.rpartition("@")
    if not at:
        return {}
    path = url.path
    if over_http(environ, signal) and not environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"):
        path = f"{path.rstrip('/')}/v1/{signal.lower()}"
    given = environ.get(f"OTEL_EXPORTER_OTLP_{signal}_HEADERS") or environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    credentials = base64.b64encode(unquote(user).encode()).decode()
    headers = {"authorization": f"Basic {credentials}", **parse_env_headers(given, liberal=True)}
    return {"endpoint": url._replace(netloc=host, path=path).geturl().removeprefix("//"), "headers": headers}


def resource() -> Resource:
    """What every span and metric of this process says of its origin: service, host and instance.

    OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME override all of it; the default service name is `mulligan-worker`. The
    SDK sets `service.instance.id` to a random id of the process.
    """
    configured = Resource.create()
    named: dict[str, str] = {}
    if str(configured.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        named[SERVICE_NAME] = "mulligan-worker"
    # A service that somebody named has a version of its own, which we do not know.
    if {**configured.attributes, **named}[SERVICE_NAME] == "mulligan-worker":
        named[SERVICE_VERSION] = str(configured.attributes.get(SERVICE_VERSION) or own_version())
    host = {HOST_NAME: socket.gethostname(), HOST_ADDRESS: _address_of_host()}
    return Resource(host).merge(configured).merge(Resource(named))


@cache
def own_version() -> str:
    """Mulligan's. It is in a file, which is read once in a process."""
    return version("mulligan")


def _address_of_host() -> str:
    """The address from which this host sends to others; the loopback's if it has no network. Nothing is sent."""
    for family, documentation_address in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((documentation_address, 9))
            address: str = probe.getsockname()[0]
            return address
    return "127.0.0.1"
