"""Metrics over OTLP: how long models and tools take, what they cost, what is recovered; and Temporal's own.

Names and buckets are those of OpenTelemetry's GenAI conventions (1.41), and `mulligan.*`. No value of an attribute is made
by a model: a tool that there is not is counted as `(unknown)`, or a model could make as many time series as it liked.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from datetime import timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

from mulligan.model_name import ModelName
from mulligan.observe import otlp, semconv
from mulligan.values import Usage

if TYPE_CHECKING:
    from temporalio.runtime import Runtime

logger = logging.getLogger("mulligan.metrics")

UNKNOWN_TOOL = "(unknown)"
SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
"""The conventions' buckets for durations in seconds, and for tokens."""
USD = (0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 50, 100, 500)
STEPS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 1000)


class Metrics:
    """The metrics of this process. Without an OTLP endpoint (or a reader of one's own) it does nothing."""

    def __init__(self, *readers: MetricReader, exports: bool | None = None) -> None:
        exports = otlp.is_configured(signal="METRICS") if exports is None else exports
        if exports:
            readers = (*readers, PeriodicExportingMetricReader(otlp.metric_exporter()))
        self._provider = MeterProvider(readers, resource=otlp.resource(), shutdown_on_exit=False) if readers else None
        meter = (self._provider or NoOpMeterProvider()).get_meter("mulligan", version("mulligan"))

        def histogram(of: str, unit: str, description: str, buckets: tuple[float, ...]) -> Any:
            return meter.create_histogram(of, unit, description, explicit_bucket_boundaries_advisory=buckets)

        self._model = histogram("gen_ai.client.operation.duration", "s", "An attempt of a model call.", SECONDS)
        self._tokens = histogram("gen_ai.client.token.usage", "{token}", "Tokens of a model call.", TOKENS)
        self._tool = histogram("mulligan.tool_call.duration", "s", "An attempt of a tool call.", SECONDS)
        self._steps = histogram("mulligan.run.steps", "{step}", "Steps of a run, at its end.", STEPS)
        self._cost = histogram(
            "mulligan.run.cost", "{USD}", "Cost of a run, at its end, where its prices are known.", USD
        )
        self._held_back = meter.create_counter(
            "mulligan.model_calls.held_back",
            "{request}",
            "Requests that were not sent, as the endpoint limits this worker.",
        )
        of = "mulligan.prefix_cache"
        self._found = meter.create_counter(f"{of}.requests", "{request}", "Model calls that looked a conversation up.")
        self._asked = meter.create_counter(f"{of}.fetched", "By", "Messages asked of workflows, as JSON.")
        self._held = meter.create_up_down_counter(f"{of}.size", "By", "Memory of conversations and results, about.")

    def model_call(self, seconds: float, *, provider: str, model: str, error: str | None) -> None:
        """An attempt of a model call ended."""
        self._model.record(seconds, {**_chat(provider, model), **_error(error)})

    def held_back(self, model: str) -> None:
        """A request was not sent, as the endpoint limits this worker. The model with its provider, as agents name it."""
        self._held_back.add(1, {semconv.REQUEST_MODEL: ModelName.parse(model).name})

    def tokens(self, usage: Usage, *, provider: str, model: str) -> None:
        """A model call was answered."""
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            self._tokens.record(count, {**_chat(provider, model), semconv.TOKEN_TYPE: kind})

    def tool_call(self, seconds: float, *, agent: str, tool: str, error: str | None, recovered: bool) -> None:
        """An attempt of a tool call ended, or a mistake in a call was told to the model."""
        about = {semconv.AGENT_NAME: agent, semconv.TOOL_NAME: tool, semconv.RECOVERED: recovered}
        self._tool.record(max(0.0, seconds), {**about, **_error(error)})

    def run(self, steps: int, *, agent: str, status: str, cost: float | None = None) -> None:
        """A run, or a turn of a `DurableAgent`, ended. `cost`: USD."""
        about = {semconv.AGENT_NAME: agent, semconv.STATUS: status}
        self._steps.record(steps, about)
        if cost is not None:
            self._cost.record(cost, about)

    def prefix_cache(self, result: str, fetched: int) -> None:
        """A model call has its conversation: by what was held (`result`), and by so many bytes asked of the workflow."""
        self._found.add(1, {semconv.CACHE_RESULT: result})
        self._asked.add(fetched)

    def prefix_cache_size(self, change: int) -> None:
        """The memory that conversations take has changed by so many bytes."""
        self._held.add(change)

    def flush(self) -> None:
        """Export what was counted, now."""
        if self._provider is not None:
            self._provider.force_flush()

    def shutdown(self) -> None:
        """Export what was counted, and stop."""
        if self._provider is not None:
            self._provider.shutdown()


def temporal_runtime(environ: Mapping[str, str] = os.environ) -> Runtime | None:
    """A runtime of the SDK that sends Temporal's own metrics to the same endpoint; None where none is set.

    Its core sends them itself, so it is told what our exporter reads from the environment: endpoint, headers, protocol.
    """
    if not otlp.is_configured(environ, "METRICS"):
        return None
    from temporalio.runtime import OpenTelemetryConfig, Runtime, TelemetryConfig

    http = otlp.over_http(environ, "METRICS")
    url = otlp.endpoint_of(environ, "METRICS")
    if "://" not in url:
        url = f"http://{url}"  # as gRPC exporters take it: host and port
    if http and not environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        url = f"{url.rstrip('/')}/v1/metrics"
    named = environ.get("OTEL_EXPORTER_OTLP_METRICS_HEADERS") or environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    headers = dict(pair.strip().split("=", 1) for pair in named.split(",") if "=" in pair)
    every = int(environ.get("OTEL_METRIC_EXPORT_INTERVAL") or 60_000)
    config = OpenTelemetryConfig(
        url=url, headers=headers, http=http, metric_periodicity=timedelta(milliseconds=every), durations_as_seconds=True
    )
    # Temporal's core takes them as its resource: without an instance, workers would count in one series.
    told = otlp.resource().attributes
    tags = {name: str(value) for name, value in told.items() if not name.startswith("telemetry.sdk.")}
    return Runtime(telemetry=TelemetryConfig(metrics=config, global_tags=tags))


def _chat(provider: str, model: str) -> dict[str, str]:
    return {semconv.OPERATION_NAME: semconv.CHAT, semconv.PROVIDER_NAME: provider, semconv.REQUEST_MODEL: model}


def _error(kind: str | None) -> dict[str, str]:
    return {semconv.ERROR_TYPE: kind} if kind else {}


class _SaidOnce(logging.Filter):
    """An endpoint may take traces alone, as Jaeger does. That is said once, not as an error at each export."""

    def __init__(self) -> None:
        super().__init__()
        self._was_said = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop what says that metrics are not taken there."""
        text = record.getMessage()
        if "metrics" not in text or not any(sign in text for sign in ("UNIMPLEMENTED", "404", "405")):
            return True
        if not self._was_said:
            self._was_said = True
            logger.warning("The OTLP endpoint takes no metrics; OTEL_METRICS_EXPORTER=none switches them off.")
        return False


_said_once = _SaidOnce()
for _name in ("grpc.exporter", "http.metric_exporter"):
    logging.getLogger(f"opentelemetry.exporter.otlp.proto.{_name}").addFilter(_said_once)
