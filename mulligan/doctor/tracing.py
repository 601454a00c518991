"""Checks of the places where traces go: the OTLP endpoint, and Jaeger's query API."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import httpx2
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.trace.export import SpanExportResult

from mulligan.client.settings import settings
from mulligan.doctor.finding import Finding
from mulligan.observe.otlp import Signal, endpoint_of, is_configured, metric_exporter, over_http, span_exporter
from mulligan.trace_view.jaeger import DEFAULT_URL, without_secrets

EXPORT_SECONDS = 5.0


async def check_otlp() -> list[Finding]:
    """Export nothing to each configured OTLP endpoint, with the exporters that workers use."""
    findings = [await _check_signal(signal) for signal in ("TRACES", "METRICS") if is_configured(os.environ, signal)]
    if findings:
        return findings
    return [Finding("otlp", "ok", "no endpoint is set, so no spans are exported (OTEL_EXPORTER_OTLP_ENDPOINT)")]


async def _check_signal(signal: Signal) -> Finding:
    url = without_secrets(endpoint_of(os.environ, signal))
    protocol = "HTTP" if over_http(os.environ, signal) else "gRPC"
    name = f"otlp {signal.lower()}"
    try:
        if await asyncio.to_thread(_export_nothing, signal):
            return Finding(name, "ok", f"{url} accepts {signal.lower()} over {protocol}")
    except Exception as error:  # noqa: BLE001 - whatever an exporter's library raises becomes a line of the report
        return Finding(name, "problem", f"{url} cannot be used over {protocol}: {type(error).__name__}: {error}")
    return Finding(
        name, "problem", f"{url} does not accept {signal.lower()} over {protocol}; see OTEL_EXPORTER_OTLP_PROTOCOL"
    )


def _export_nothing(signal: Signal) -> bool:
    exporter: Any
    if signal == "TRACES":
        exporter = span_exporter(timeout=EXPORT_SECONDS)
        done = exporter.export(()) == SpanExportResult.SUCCESS
    else:
        exporter = metric_exporter()
        done = exporter.export(MetricsData([]), timeout_millis=EXPORT_SECONDS * 1000) == MetricExportResult.SUCCESS
    exporter.shutdown()
    return bool(done)


async def check_jaeger() -> list[Finding]:
    """Whether Jaeger answers, for links and `mulligan show --trace`."""
    configured = settings().jaeger_url
    url = configured or DEFAULT_URL
    try:
        async with httpx2.AsyncClient(timeout=5, trust_env=bool(configured)) as client:
            response = await client.get(f"{url}/api/v3/services")
        services = response.json()["services"]
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError, TypeError) as error:
        if not configured and isinstance(error, httpx2.HTTPError):
            text = f"not set (MULLIGAN_JAEGER_URL), and none answers at {DEFAULT_URL}"
            return [Finding("jaeger", "ok", text)]
        return [
            Finding(
                "jaeger", "problem", f"{without_secrets(url)} does not answer as Jaeger does; see MULLIGAN_JAEGER_URL"
            )
        ]
    return [Finding("jaeger", "ok", f"{without_secrets(url)} has traces of {len(services)} services")]
