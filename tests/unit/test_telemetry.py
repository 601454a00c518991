"""Spans without a server: when there are any, what their ids are, and where they would go."""

from __future__ import annotations

import os

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mulligan import telemetry
from mulligan.handoff import Where
from mulligan.telemetry import Telemetry, captures_content, derive, is_configured
from mulligan.values import ToolCall

WHERE = Where(agent="a", conversation="0", trace=f"00-{1:032x}-{2:016x}-01")
CALL = ToolCall(id="c1", name="look", arguments='{"a": "secret"}')
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("environ", "exports"),
    [
        ({}, False),
        ({ENDPOINT: ""}, False),
        ({ENDPOINT: "http://localhost:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, True),
        ({ENDPOINT: "http://localhost:4317", "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({ENDPOINT: "http://localhost:4317", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_nothing_is_exported_unless_asked(environ: dict[str, str], exports: bool) -> None:
    assert is_configured(environ) is exports


@pytest.mark.parametrize(
    ("environ", "kind"),
    [
        ({ENDPOINT: "http://localhost:4317"}, "grpc"),
        ({ENDPOINT: "http://localhost:4318"}, "http"),
        ({ENDPOINT: "http://localhost:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "http"),
        ({ENDPOINT: "http://localhost:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
    ],
)
def test_the_protocol(environ: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    exporter = telemetry._exporter(environ)
    assert kind in type(exporter).__module__
    exporter.shutdown()


@pytest.mark.parametrize(
    ("wish", "captures"), [("", False), ("false", False), ("true", True), ("SPAN_ONLY", True), ("NO_CONTENT", False)]
)
def test_content_only_by_opt_in(wish: str, captures: bool) -> None:
    assert captures_content({"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": wish}) is captures


def test_derived_ids() -> None:
    """The same for the same thing, another for another; parts do not run into each other."""
    assert derive(64, "a", 1) == derive(64, "a", 1) != derive(64, "a1")
    assert 0 < derive(64, "x") < 2**64
    assert 0 < derive(128, "x") < 2**128


def test_a_repeated_activity_makes_the_same_span() -> None:
    spans = InMemorySpanExporter()
    tracing = Telemetry(SimpleSpanProcessor(spans))
    for _ in range(2):
        tracing.tool_call(WHERE, CALL, step=1, attempt=1).succeed("x")
    tracing.tool_call(WHERE, CALL, step=1, attempt=2).fail(
        "tool_error", text="quoting secret", safe_text="safe", exception="ValueError", recovered=True
    )
    tracing.tool_call(WHERE, CALL, step=2, attempt=1)  # never told how it went
    one, again, failed = spans.get_finished_spans()
    assert one.context.span_id == again.context.span_id != failed.context.span_id
    assert {span.context.trace_id for span in (one, failed)} == {1}
    assert failed.parent is not None
    assert failed.parent.span_id == 2
    assert "secret" not in failed.to_json()
    assert failed.attributes is not None
    assert failed.attributes["ai.toolCall.error"] == "safe"
    tracing.shutdown()


def test_without_an_endpoint_there_is_no_cost() -> None:
    tracing = Telemetry()
    span = tracing.tool_call(WHERE, CALL, step=1, attempt=1)
    assert not span.span.is_recording()
    assert tracing.open_run(
        workflow_id="w", run_id="r", first_run_id="r", conversation="0", turn=1, agent="a", parent=None, metadata={}
    ).startswith("00-")


def test_the_service_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, expected in ((None, "mulligan-worker"), ("shop", "shop")):
        if name:
            monkeypatch.setenv("OTEL_SERVICE_NAME", name)
        spans = InMemorySpanExporter()
        tracing = Telemetry(SimpleSpanProcessor(spans))
        tracing.tool_call(WHERE, CALL, step=1, attempt=1).succeed("")
        assert spans.get_finished_spans()[0].resource.attributes["service.name"] == expected
        tracing.shutdown()
