"""Spans without a server: whether they are exported, their ids and attributes, and their exporters."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import socket
import threading
import time
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from mulligan.observe import otlp, semconv, span_export
from mulligan.observe.otlp import captures_content, is_configured
from mulligan.observe.span_export import DelayedSpanProcessor
from mulligan.observe.spans import (
    MAX_TEXT_CHARS,
    ChatAttempt,
    ToolCallAttempt,
    TracedTurn,
    agent_finish,
    chat,
)
from mulligan.observe.telemetry import Telemetry
from mulligan.observe.trace_ids import derive
from mulligan.values import ToolCall, Usage
from mulligan.wire.run_context import RunContext
from mulligan.wire.run_end import FinishRun, TurnEnd
from tests.support.otlp_receiver import OtlpReceiver

WHERE = RunContext(agent="a", conversation="0", trace=f"00-{1:032x}-{2:016x}-01")
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
def test_nothing_is_exported_without_an_endpoint(environ: dict[str, str], exports: bool) -> None:
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
def test_the_exporter_uses_the_configured_protocol(
    environ: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    exporter = otlp.span_exporter(environ)
    assert kind in type(exporter).__module__
    exporter.shutdown()


@pytest.mark.parametrize(
    ("wish", "captures"), [("", False), ("false", False), ("true", True), ("SPAN_ONLY", True), ("NO_CONTENT", False)]
)
def test_content_is_captured_only_if_enabled(wish: str, captures: bool) -> None:
    assert captures_content({"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": wish}) is captures


def test_no_attribute_is_the_namespace_of_another() -> None:
    """Backends that store attributes as objects refuse a span that has both `a` and `a.b`."""
    values = (value for name, value in vars(semconv).items() if name.isupper())
    names = {value for value in values if isinstance(value, str) and value.startswith("mulligan.")}
    assert [(short, long) for short in names for long in names if long.startswith(f"{short}.")] == []


def test_derived_ids_are_equal_for_equal_parts_only() -> None:
    """Parts are not just concatenated."""
    assert derive(64, "a", 1) == derive(64, "a", 1) != derive(64, "a1")
    assert 0 < derive(64, "x") < 2**64
    assert 0 < derive(128, "x") < 2**128


def test_a_repeated_activity_exports_the_same_span() -> None:
    spans = InMemorySpanExporter()
    tracing = Telemetry(SimpleSpanProcessor(spans))
    for _ in range(2):
        tracing.tool_call(WHERE, ToolCallAttempt(call=CALL, step=1, attempt=1)).succeed("x")
    tracing.tool_call(WHERE, ToolCallAttempt(call=CALL, step=1, attempt=2)).fail(
        "tool_error", text="quoting secret", safe_text="safe", exception="ValueError", recovered=True
    )
    tracing.tool_call(WHERE, ToolCallAttempt(call=CALL, step=2, attempt=1))  # without an outcome
    one, again, failed = spans.get_finished_spans()
    assert one.context.span_id == again.context.span_id != failed.context.span_id
    assert {span.context.trace_id for span in (one, failed)} == {1}
    assert failed.parent is not None
    assert failed.parent.span_id == 2
    assert "secret" not in failed.to_json()
    assert failed.attributes is not None
    assert failed.attributes["ai.toolCall.error"] == "safe"
    tracing.shutdown()


def test_without_an_endpoint_spans_do_not_record() -> None:
    tracing = Telemetry()
    span = tracing.tool_call(WHERE, ToolCallAttempt(call=CALL, step=1, attempt=1))
    assert not span.span.is_recording()
    run = TracedTurn(agent="a", workflow_id="w", run_id="r", first_run_id="r", conversation="0")
    assert tracing.open_run(run, at=1).startswith("00-")


def test_the_service_name_comes_from_the_environment_or_is_mulligan_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, expected in ((None, "mulligan-worker"), ("shop", "shop")):
        if name:
            monkeypatch.setenv("OTEL_SERVICE_NAME", name)
        spans = InMemorySpanExporter()
        tracing = Telemetry(SimpleSpanProcessor(spans))
        tracing.tool_call(WHERE, ToolCallAttempt(call=CALL, step=1, attempt=1)).succeed("")
        assert spans.get_finished_spans()[0].resource.attributes["service.name"] == expected
        tracing.shutdown()


def recording_telemetry(**options: Any) -> tuple[Telemetry, InMemorySpanExporter]:
    spans = InMemorySpanExporter()
    return Telemetry(SimpleSpanProcessor(spans), **options), spans


def opened(tracing: Telemetry, *, run: str = "r", turn: int = 1, parent: str | None = None) -> str:
    return tracing.open_run(
        TracedTurn(
            agent="a",
            workflow_id="w",
            run_id="r2",
            first_run_id=run,
            conversation="0",
            turn=turn,
            parent=parent,
            metadata={"k": "v"},
        ),
        at=1_000,
    )


def test_opening_a_run_repeatedly_gives_the_same_ids() -> None:
    """Another turn or run has other ids; the returned traceparent names the span."""
    tracing, spans = recording_telemetry()
    first, again, turn, run = opened(tracing), opened(tracing), opened(tracing, turn=2), opened(tracing, run="q")
    assert first == again
    assert len({first, turn, run}) == 3
    assert first.split("-")[1] == turn.split("-")[1] != run.split("-")[1]
    span = spans.get_finished_spans()[0]
    assert first == f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"
    assert (span.name, span.parent, span.status.status_code) == ("invoke_agent a", None, StatusCode.UNSET)
    assert span.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "a",
        "gen_ai.conversation.id": "w",
        "temporal.workflow_id": "w",
        "temporal.run_id": "r2",
        "mulligan.metadata.k": "v",
    }
    tracing.shutdown()


@pytest.mark.parametrize("flags", ["01", "00"])
def test_a_run_joins_the_trace_of_its_caller_even_if_it_is_not_sampled(flags: str) -> None:
    """Then the run is not sampled either."""
    tracing, spans = recording_telemetry()
    where = opened(tracing, parent=f"00-{7:032x}-{8:016x}-{flags}")
    assert where.startswith(f"00-{7:032x}-")
    assert where.endswith(flags)
    tracing.tool_call(
        RunContext(agent="a", conversation="0", trace=where), ToolCallAttempt(call=CALL, step=1, attempt=1)
    ).succeed("")
    found = spans.get_finished_spans()
    assert len(found) == (2 if flags == "01" else 0)
    assert [span.parent and span.parent.span_id for span in found][:1] == [8][: len(found)]
    tracing.shutdown()


def test_each_kind_of_span_has_its_own_id() -> None:
    """Derived from step, attempt, call and turn."""
    tracing, spans = recording_telemetry()
    for step, attempt in [(1, 1), (1, 2), (2, 1)]:
        tracing.tool_call(WHERE, ToolCallAttempt(call=CALL, step=step, attempt=attempt)).succeed("")
        tracing.tool_call(
            WHERE, ToolCallAttempt(call=CALL.model_copy(update={"id": "c2"}), step=step, attempt=attempt)
        ).succeed("")
        with tracing.chat(WHERE, ChatAttempt(provider="openai", model="m", step=step, attempt=attempt)):
            pass
        tracing.finish_run(
            FinishRun(where=WHERE, turn=step, status="completed", steps=1, recovered_failures=0, usage=Usage()),
            "AgentWorkflow",
        )
    ids = [span.context.span_id for span in spans.get_finished_spans()]
    assert (len(ids), len(set(ids))) == (12, 11)  # the finish of turn 1 was recorded twice
    tracing.shutdown()


def test_a_failed_model_attempt_has_an_error_span_without_stack_trace() -> None:
    """The exception is raised further. Lines of a stack trace may contain secrets."""
    tracing, spans = recording_telemetry()
    with (
        pytest.raises(OSError, match="down"),
        tracing.chat(WHERE, ChatAttempt(provider="openai", model="m", step=1, attempt=2)),
    ):
        raise OSError("down")
    [span] = spans.get_finished_spans()
    assert (span.name, span.kind.name, span.status.status_code) == ("chat m", "CLIENT", StatusCode.ERROR)
    assert span.attributes is not None
    assert (span.attributes["error.type"], span.attributes["mulligan.attempt"]) == ("OSError", 2)
    assert [dict(event.attributes or {}) for event in span.events] == [
        {"exception.type": "OSError", "exception.message": "down"}
    ]
    tracing.shutdown()


@pytest.mark.parametrize("error_type", [None, "ModelRequestError"])
def test_the_finish_span_has_the_status_and_the_counters_of_the_run(error_type: str | None) -> None:
    tracing, spans = recording_telemetry()
    usage = Usage(input_tokens=1, output_tokens=2, cached_input_tokens=3, reasoning_tokens=4)
    tracing.finish_run(
        FinishRun(turn=1, where=WHERE, status="s", steps=5, recovered_failures=6, usage=usage, error_type=error_type),
        "RefundDesk",
    )
    [span] = spans.get_finished_spans()
    assert span.status.status_code is (StatusCode.ERROR if error_type else StatusCode.UNSET)
    assert span.attributes == {
        "temporal.workflow_type": "RefundDesk",
        "mulligan.status": "s",
        "mulligan.steps": 5,
        "mulligan.recovered_failures": 6,
        "mulligan.usage.input_tokens": 1,
        "mulligan.usage.output_tokens": 2,
        "mulligan.usage.cached_input_tokens": 3,
        "mulligan.usage.reasoning_tokens": 4,
        **({"error.type": error_type} if error_type else {}),
    }
    tracing.shutdown()


@pytest.mark.parametrize("content", [True, False])
def test_content_is_on_spans_only_if_enabled_and_is_cut(content: bool) -> None:
    """Arguments, results, and the parts of error texts that quote them."""
    tracing, spans = recording_telemetry(content=content)
    tracing.tool_call(WHERE, ToolCallAttempt(call=CALL, step=1, attempt=1)).succeed("secret " * 10_000)
    tracing.tool_call(WHERE, ToolCallAttempt(call=CALL, step=2, attempt=1)).fail(
        "invalid_arguments", text="safe\nsecret", safe_text="safe", exception="ValidationError", recovered=True
    )
    both = [json.loads(span.to_json())["attributes"] for span in spans.get_finished_spans()]
    assert ["secret" in json.dumps(each) for each in both] == [content] * 2
    assert both[1]["ai.toolCall.error"] == ("safe\nsecret" if content else "safe")
    assert both[0].get("ai.toolCall.args") == (CALL.arguments if content else None)
    assert len(both[0].get("ai.toolCall.result", "")) < MAX_TEXT_CHARS + 50
    tracing.shutdown()


@given(st.lists(st.text(max_size=5) | st.integers()), st.sampled_from([64, 128]))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_ids_are_valid_and_stable(parts: list[object], bits: int) -> None:
    assert 0 < derive(bits, *parts) == derive(bits, *parts) < 2**bits


def test_no_id_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """In OpenTelemetry zero means no id."""
    nothing = SimpleNamespace(sha256=lambda _: SimpleNamespace(digest=lambda: bytes(32)))
    monkeypatch.setattr("mulligan.observe.trace_ids.hashlib", nothing)
    assert (derive(64, "x"), derive(128, "x")) == (1, 1)


def test_spans_of_user_code_have_random_ids() -> None:
    """A derived id is used only for the span for which it was derived."""
    tracing, spans = recording_telemetry()
    with tracing.chat(WHERE, ChatAttempt(provider="p", model="m", step=1, attempt=1)):
        for _ in range(2):
            tracing._tracer.start_span("a user's own").end()
    ids = {span.context.span_id for span in spans.get_finished_spans()}
    assert len(ids) == 3
    assert {span.context.trace_id for span in spans.get_finished_spans()} == {1}
    tracing.shutdown()


@pytest.mark.parametrize(("team", "name"), [("shop", "mulligan-worker"), ("x", "y")])
def test_resource_attributes_are_read_from_the_environment(
    team: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"team={team}" + (f",service.name={name}" if name == "y" else ""))
    tracing, spans = recording_telemetry()
    opened(tracing)
    attributes = spans.get_finished_spans()[0].resource.attributes
    tracing.shutdown()
    assert (attributes["team"], attributes["service.name"]) == (team, name)


HOST_AND_SERVICE = ("host.name", "ip", "service.version", "service.instance.id")


def test_the_resource_names_the_host_the_instance_and_the_version_of_the_worker() -> None:
    attributes = otlp.resource().attributes
    assert attributes["host.name"] == socket.gethostname()
    assert attributes["service.version"] == version("mulligan")
    ipaddress.ip_address(str(attributes["ip"]))
    assert attributes["service.instance.id"]
    assert attributes == otlp.resource().attributes  # spans, metrics and Temporal's metrics have the same


def test_the_environment_overrides_each_attribute_of_the_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {name: f"my-{name}" for name in HOST_AND_SERVICE}
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", ",".join(f"{name}={value}" for name, value in given.items()))
    attributes = otlp.resource().attributes
    assert {name: attributes[name] for name in HOST_AND_SERVICE} == given


def test_a_service_with_another_name_does_not_get_the_version_of_mulligan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    assert "service.version" not in otlp.resource().attributes
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.version=7")
    assert otlp.resource().attributes["service.version"] == "7"


def test_an_http_endpoint_on_another_port_uses_no_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://localhost:43180")
    exporter = otlp.span_exporter({ENDPOINT: "http://localhost:43180"})
    exporter.shutdown()
    assert "grpc" in type(exporter).__module__


def test_without_an_endpoint_no_provider_and_no_thread_are_created() -> None:
    """All methods do nothing, but the ids that they return are the same."""
    before = set(threading.enumerate())
    tracing = Telemetry(content=True)
    assert tracing._provider is None
    with tracing.chat(WHERE, ChatAttempt(provider="p", model="m", step=1, attempt=1)) as span:
        tracing.add_content(span, "x", object())
    other, _ = recording_telemetry()
    assert opened(tracing) == opened(other)
    tracing.flush()
    tracing.shutdown()
    other.shutdown()
    assert set(threading.enumerate()) <= before  # threads of other tests may end meanwhile


def test_a_run_that_is_opened_again_is_the_same_span() -> None:
    tracing, spans = recording_telemetry()
    opened(tracing)
    opened(tracing)
    first, second = spans.get_finished_spans()
    assert first.to_json() == second.to_json()
    assert (first.start_time, first.end_time) == (1_000_000_000_000, 1_000_001_000_000)
    tracing.shutdown()


@pytest.mark.parametrize(("step", "opens"), [(1, False), (100, False), (101, True), (102, False), (201, True)])
async def test_each_hundred_steps_after_the_first_have_a_parent(step: int, opens: bool) -> None:
    tracing, spans = recording_telemetry()
    await tracing.open_group(WHERE, step, 1)
    assert [span.name for span in spans.get_finished_spans()] == ["agent.steps"] * opens
    tracing.shutdown()


def test_an_attribute_whose_value_is_unknown_is_left_out() -> None:
    """As where a span is rebuilt from a history, which does not contain every value."""
    assert "gen_ai.provider.name" not in chat(WHERE.trace, ChatAttempt(model="m", step=1, attempt=1)).attributes
    end = TurnEnd(turn=1, status="failed", steps=1, recovered_failures=0, usage=Usage())
    assert "mulligan.cost" not in agent_finish(WHERE.trace, end, "RefundDesk").attributes


async def test_the_spans_of_a_step_are_children_of_its_hundred() -> None:
    tracing, spans = recording_telemetry()
    await tracing.open_group(WHERE, 101, 1)
    for step in (100, 101, 200):
        with tracing.chat(WHERE, ChatAttempt(provider="openai", model="m", step=step, attempt=1)):
            pass
        tracing.tool_call(WHERE, ToolCallAttempt(call=CALL, step=step, attempt=1)).succeed("")
    group, *others = spans.get_finished_spans()
    run = int(WHERE.trace.split("-")[2], 16)
    assert group.parent is not None
    assert group.parent.span_id == run
    assert group.attributes == {"mulligan.step": 101, "mulligan.last_step": 200}
    parents = [span.parent.span_id if span.parent else None for span in others]
    assert parents == [run, run, *[group.context.span_id] * 4]
    tracing.shutdown()


async def test_spans_that_a_killed_worker_might_repeat_are_held_back() -> None:
    """Parents are exported at once, all others in order after the hold; a flush and a shutdown export everything."""
    spans = InMemorySpanExporter()
    held = DelayedSpanProcessor(BatchSpanProcessor(spans, schedule_delay_millis=3_600_000), seconds=3600)
    tracing = Telemetry(held, exports=False)
    opened(tracing)
    await tracing.open_group(WHERE, 101, 1)
    tracing.tool_call(WHERE, ToolCallAttempt(call=CALL, step=1, attempt=1)).succeed("")
    while len(spans.get_finished_spans()) < 2:
        await held.wait_for_parent_spans()
    assert {span.name for span in spans.get_finished_spans()} == {"invoke_agent a", "agent.steps"}
    spans.clear()
    tracing.flush()
    assert [span.name for span in spans.get_finished_spans()] == ["ai.toolCall"]
    tracing.tool_call(WHERE, ToolCallAttempt(call=CALL, step=2, attempt=1)).succeed("")
    tracing.shutdown()
    assert len(spans.get_finished_spans()) == 2


async def test_a_run_that_opens_after_the_shutdown_goes_on_without_spans() -> None:
    """OpenTelemetry: calls after a shutdown do nothing. An activity that raised here would fail at each attempt."""
    spans = InMemorySpanExporter()
    tracing = Telemetry(DelayedSpanProcessor(SimpleSpanProcessor(spans)), exports=False)
    tracing.shutdown()
    opened(tracing)
    await tracing.open_group(WHERE, 101, 1)
    assert spans.get_finished_spans() == ()


async def test_a_parent_that_a_slow_receiver_takes_after_its_run_has_gone_on_arrives_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that is not sampled has no parents."""
    monkeypatch.setattr(span_export, "PARENT_EXPORT_SECONDS", 0.1)
    with OtlpReceiver() as receiver:
        for name, value in receiver.environment("http/protobuf").items():
            monkeypatch.setenv(name, value)
        receiver.hold()
        held = span_export.otlp_processor()
        tracing = Telemetry(held, exports=False)
        opened(tracing)
        opened(tracing, parent=f"00-{1:032x}-{2:016x}-00")
        await held.wait_for_parent_spans()
        await asyncio.to_thread(receiver.wait_for_attempts, 1)
        await asyncio.sleep(0.5)  # several times as long as the run waits
        receiver.release()
        await asyncio.to_thread(tracing.shutdown)
        assert [span.name for span in receiver.spans()] == ["invoke_agent a"]


def test_held_back_spans_are_exported_after_the_hold() -> None:
    spans = InMemorySpanExporter()
    tracing = Telemetry(DelayedSpanProcessor(SimpleSpanProcessor(spans), seconds=0.01), exports=False)
    tracing.tool_call(WHERE, ToolCallAttempt(call=CALL, step=1, attempt=1)).succeed("")
    while not spans.get_finished_spans():
        time.sleep(0.01)
    tracing.shutdown()
    assert [span.name for span in spans.get_finished_spans()] == ["ai.toolCall"]
