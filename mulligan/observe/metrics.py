"""Metrics over OTLP: durations of model and tool calls, tokens, costs, recovered failures; and Temporal's own metrics.

Names and buckets are those of OpenTelemetry's GenAI conventions (1.41), and `mulligan.*`. No attribute has a value that a
model chose: a call of a tool that does not exist is counted as `(unknown)`, or a model could create any number of series.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

from mulligan.model_name import ModelName
from mulligan.observe import otlp, semconv
from mulligan.values import Usage

if TYPE_CHECKING:
    from temporalio.runtime import OpenTelemetryConfig, Runtime

logger = logging.getLogger("mulligan.metrics")
CORE_LOG = "temporalio.core"
"""The log of the Core SDK."""

UNKNOWN_TOOL = "(unknown)"
SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
"""The conventions' buckets for durations in seconds, and for tokens."""
USD = (0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 50, 100, 500)
STEPS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 1000)


class Metrics:
    """The metrics of this process. Without an OTLP endpoint or a `reader` it does nothing.

    Args:
        readers: Further readers of the metrics.
        exports: Whether they are exported by OTLP; as the environment says if None.
    """

    def __init__(self, *readers: MetricReader, exports: bool | None = None) -> None:
        exports = otlp.is_configured(signal="METRICS") if exports is None else exports
        if exports:
            readers = (*readers, PeriodicExportingMetricReader(otlp.metric_exporter()))
        self._provider = MeterProvider(readers, resource=otlp.resource(), shutdown_on_exit=False) if readers else None
        meter = (self._provider or NoOpMeterProvider()).get_meter("mulligan", otlp.own_version())

        def histogram(name: str, unit: str, description: str, buckets: tuple[float, ...]) -> Any:
            return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=buckets)

        self._model = histogram("gen_ai.client.operation.duration", "s", "An attempt of a model call.", SECONDS)
        self._tokens = histogram("gen_ai.client.token.usage", "{token}", "Tokens of a model call.", TOKENS)
        self._tool = histogram("mulligan.tool_call.duration", "s", "An attempt of a tool call.", SECONDS)
        self._steps = histogram("mulligan.run.steps", "{step}", "Steps of a run, at its end.", STEPS)
        self._cost = histogram(
            "mulligan.run.cost", "{USD}", "Cost of a run, at its end, where its prices are known.", USD
        )
        self._unsent_requests = meter.create_counter(
            "mulligan.model_calls.throttled",
            "{request}",
            "Requests that were not sent, as the endpoint limits this worker.",
        )
        self._cache_lookups = meter.create_counter(
            "mulligan.prefix_cache.requests", "{request}", "Model calls that looked a conversation up."
        )
        self._fetched_bytes = meter.create_counter(
            "mulligan.prefix_cache.fetched", "By", "Messages fetched from workflows, as JSON."
        )
        self._cache_bytes = meter.create_up_down_counter(
            "mulligan.prefix_cache.size", "By", "Estimated memory of conversations and results."
        )
        self._abandoned_threads = meter.create_up_down_counter(
            "mulligan.threads.abandoned",
            "{thread}",
            "Threads of functions that still run after their limits, or block an event loop.",
        )
        self._refused_sub_runs = meter.create_counter(
            "mulligan.sub_runs.refused", "{run}", "Runs of sub-agents that a limit of depth or number refused."
        )

    def record_model_call(self, seconds: float, *, provider: str, model: str, error: str | None) -> None:
        """Record an attempt of a model call that has ended. `error`: its kind, None if it succeeded."""
        self._model.record(seconds, {**_chat(provider, model), **_error(error)})

    def count_unsent_request(self, model: str) -> None:
        """Count a request that was not sent because the endpoint limits this worker. `model`: `provider:NAME`."""
        self._unsent_requests.add(1, {semconv.REQUEST_MODEL: ModelName.parse(model).name})

    def count_tokens(self, usage: Usage, *, provider: str, model: str) -> None:
        """Count the tokens of a model call that succeeded."""
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            self._tokens.record(count, {**_chat(provider, model), semconv.TOKEN_TYPE: kind})

    def record_tool_call(self, seconds: float, *, agent: str, tool: str, error: str | None, recovered: bool) -> None:
        """Record an attempt of a tool call that has ended, or a mistake in a call that was returned to the model."""
        attributes = {semconv.AGENT_NAME: agent, semconv.TOOL_NAME: tool, semconv.RECOVERED: recovered}
        self._tool.record(max(0.0, seconds), {**attributes, **_error(error)})

    def record_run(self, steps: int, *, agent: str, status: str, cost: float | None = None) -> None:
        """Record a run, or a turn of a `DurableAgent`, that has ended. `cost` is in USD; None if it is unknown."""
        attributes = {semconv.AGENT_NAME: agent, semconv.STATUS: status}
        self._steps.record(steps, attributes)
        if cost is not None:
            self._cost.record(cost, attributes)

    def count_cache_lookup(self, result: str, fetched: int) -> None:
        """Count a model call's lookup of its conversation: its result, and the bytes fetched from the workflow."""
        self._cache_lookups.add(1, {semconv.CACHE_RESULT: result})
        self._fetched_bytes.add(fetched)

    def change_cache_size(self, change: int) -> None:
        """Add to the bytes of memory that conversations take; a negative number when they take less."""
        self._cache_bytes.add(change)

    def change_hung_threads(self, change: int) -> None:
        """Add to the number of threads whose functions still run after their limits."""
        self._abandoned_threads.add(change)

    def count_refused_sub_run(self, agent: str, reason: str) -> None:
        """Count a run of a sub-agent that was not started. `agent`: the calling one; `reason`: `too_deep` or `too_many`."""
        self._refused_sub_runs.add(1, {semconv.AGENT_NAME: agent, semconv.ERROR_TYPE: reason})

    def flush(self) -> None:
        """Export now what was recorded."""
        if self._provider is not None:
            self._provider.force_flush()

    def shutdown(self) -> None:
        """Export what was recorded, and stop."""
        if self._provider is not None:
            self._provider.shutdown()


def temporal_runtime(environ: Mapping[str, str] = os.environ) -> Runtime:
    """A runtime of the SDK that writes the Core SDK's log lines to this process's log, in the format of all others.

    If an endpoint for metrics is set, the runtime also exports Temporal's own metrics to it.
    """
    from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

    core_log = LoggingConfig(
        TelemetryFilter(core_level="WARN", other_level="ERROR"),
        forwarding=LogForwardingConfig(
            logging.getLogger(CORE_LOG), append_target_to_name=False, prepend_target_on_message=False
        ),
    )
    if not otlp.is_configured(environ, "METRICS"):
        return Runtime(telemetry=TelemetryConfig(logging=core_log))
    # The Core SDK exports them as its resource. Without `service.instance.id` all workers would share one series.
    attributes = otlp.resource().attributes
    tags = {name: str(value) for name, value in attributes.items() if not name.startswith("telemetry.sdk.")}
    return Runtime(telemetry=TelemetryConfig(logging=core_log, metrics=_metrics_export(environ), global_tags=tags))


def _metrics_export(environ: Mapping[str, str]) -> OpenTelemetryConfig:
    """Where the Core SDK exports its metrics: it gets the settings that our exporter reads from the environment."""
    from temporalio.runtime import OpenTelemetryConfig

    http = otlp.over_http(environ, "METRICS")
    url = otlp.endpoint_of(environ, "METRICS")
    if "://" not in url:
        url = f"http://{url}"  # gRPC exporters also accept host and port alone
    if http and not environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        url = f"{url.rstrip('/')}/v1/metrics"
    pairs = environ.get("OTEL_EXPORTER_OTLP_METRICS_HEADERS") or environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    return OpenTelemetryConfig(
        url=url,
        headers=dict(pair.strip().split("=", 1) for pair in pairs.split(",") if "=" in pair),
        http=http,
        metric_periodicity=timedelta(milliseconds=int(environ.get("OTEL_METRIC_EXPORT_INTERVAL") or 60_000)),
        durations_as_seconds=True,
    )


def _chat(provider: str, model: str) -> dict[str, str]:
    return {semconv.OPERATION_NAME: semconv.CHAT, semconv.PROVIDER_NAME: provider, semconv.REQUEST_MODEL: model}


def _error(kind: str | None) -> dict[str, str]:
    return {semconv.ERROR_TYPE: kind} if kind else {}


class _WarnOnce(logging.Filter):
    """Replaces the errors of an endpoint that accepts traces only, as Jaeger's, by one warning."""

    def __init__(self) -> None:
        super().__init__()
        self._has_warned = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop an error that says that the endpoint does not accept metrics."""
        text = record.getMessage()
        if "metrics" not in text or not any(sign in text for sign in ("UNIMPLEMENTED", "404", "405")):
            return True
        if not self._has_warned:
            self._has_warned = True
            logger.warning("The OTLP endpoint does not accept metrics; OTEL_METRICS_EXPORTER=none turns them off.")
        return False


_warn_once = _WarnOnce()
for _name in ("grpc.exporter", "http.metric_exporter"):
    logging.getLogger(f"opentelemetry.exporter.otlp.proto.{_name}").addFilter(_warn_once)
