"""A run waits for the export of its parent spans while the collector answers. One that does not answer costs it nothing.

A wait ends with the export only, not by time: a run that waited for a collector that is down would wait for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan.observe import forwarded_spans, otlp, span_export
from mulligan.observe.forwarded_spans import ForwardedSpans
from mulligan.observe.spans import TracedTurn
from mulligan.observe.telemetry import Telemetry
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.ports import free_ports


@pytest.fixture(autouse=True)
def no_wait_ends_by_time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="opentelemetry")
    for module in (span_export, forwarded_spans):
        monkeypatch.setattr(module, "PARENT_EXPORT_SECONDS", 3_600)


@pytest.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OtlpReceiver]:
    with OtlpReceiver() as running:
        for name, value in running.environment("grpc").items():
            monkeypatch.setenv(name, value)
        yield running


def open_run(tracing: Telemetry, name: str) -> None:
    run = TracedTurn(agent=name, workflow_id=name, run_id="r", first_run_id="r", conversation="c")
    tracing.open_run(run, at=1)


def names(receiver: OtlpReceiver) -> list[str]:
    return sorted(span.name for span in receiver.spans())


async def answering() -> span_export.DelayedSpanProcessor:
    """A processor that knows that the collector answers."""
    exporting = span_export.otlp_processor()
    while not (exporting._exporter and exporting._exporter.answers):
        await asyncio.sleep(0.01)
    return exporting


async def test_the_first_run_of_a_worker_waits_for_a_collector_that_answers(receiver: OtlpReceiver) -> None:
    """A worker that is killed during its first run must not lose the run's parent span."""
    exporting = await answering()
    tracing = Telemetry(exporting, exports=False)
    receiver.hold()
    open_run(tracing, "a")
    waiting = asyncio.create_task(exporting.wait_for_parent_spans())
    await asyncio.to_thread(receiver.wait_for_attempts, 1)
    assert not waiting.done()
    receiver.release()
    await waiting
    assert names(receiver) == ["invoke_agent a"]
    await asyncio.to_thread(tracing.shutdown)


async def test_a_collector_that_is_down_from_the_start_costs_no_run_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    [port] = free_ports(1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    exporting = span_export.otlp_processor()
    tracing = Telemetry(exporting, exports=False)
    open_run(tracing, "a")
    await exporting.wait_for_parent_spans()
    assert exporting._exports == set()
    await asyncio.to_thread(tracing.shutdown)


async def test_only_the_run_that_notices_an_outage_waits_and_no_span_is_lost(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporting = await answering()
    tracing = Telemetry(exporting, exports=False)
    receiver.refuse(503)
    open_run(tracing, "a")
    monkeypatch.setattr(span_export, "PARENT_EXPORT_SECONDS", 0.01)
    await exporting.wait_for_parent_spans()
    monkeypatch.setattr(span_export, "PARENT_EXPORT_SECONDS", 3_600)
    for name in "bcd":
        open_run(tracing, name)
        await exporting.wait_for_parent_spans()
    assert len(exporting._exports) == 1  # the flushes of an outage do not pile up
    receiver.accept()
    # The worker ends right after the outage.
    await asyncio.to_thread(tracing.shutdown)
    assert names(receiver) == [f"invoke_agent {name}" for name in "abcd"]


async def test_runs_wait_again_after_an_outage(receiver: OtlpReceiver) -> None:
    exporting = await answering()
    tracing = Telemetry(exporting, exports=False)
    exporting._exporter.answers = False  # type: ignore[union-attr]
    open_run(tracing, "a")
    await asyncio.to_thread(receiver.wait_for_spans, 1)
    while not exporting._exporter.answers:  # type: ignore[union-attr]
        await asyncio.sleep(0.01)
    open_run(tracing, "b")
    await exporting.wait_for_parent_spans()
    assert names(receiver) == ["invoke_agent a", "invoke_agent b"]
    await asyncio.to_thread(tracing.shutdown)


async def test_a_supervised_worker_waits_only_while_its_supervisor_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def send(number: int, span: dict[str, Any]) -> None:
        sent.append(number)

    forwarding = ForwardedSpans(send)
    tracing = Telemetry(forwarding, exports=False)
    open_run(tracing, "a")
    await forwarding.wait_for_parent_spans()
    forwarding.acknowledge(sent[-1])
    open_run(tracing, "b")
    waiting = asyncio.create_task(forwarding.wait_for_parent_spans())
    await asyncio.sleep(0)
    assert not waiting.done()
    forwarding.acknowledge(sent[-1])
    await waiting
    open_run(tracing, "c")
    monkeypatch.setattr(forwarded_spans, "PARENT_EXPORT_SECONDS", 0.01)
    await forwarding.wait_for_parent_spans()
    monkeypatch.setattr(forwarded_spans, "PARENT_EXPORT_SECONDS", 3_600)
    open_run(tracing, "d")
    await forwarding.wait_for_parent_spans()
    # After an outage of more than a minute some spans are never acknowledged: no later run waits for them.
    forwarding.acknowledge(sent[-1])
    await forwarding.wait_for_parent_spans()
    tracing.shutdown()


@pytest.mark.parametrize("endpoint", ["", "http://", "http://127.0.0.1:x", "https://[", "http://127.0.0.1:1"])
def test_an_endpoint_that_is_none_is_not_reachable(endpoint: str) -> None:
    assert not otlp.is_reachable({"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})


def test_an_endpoint_may_have_no_scheme() -> None:
    with OtlpReceiver() as running:
        bare = running.endpoint_grpc.removeprefix("http://")
        assert otlp.is_reachable({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": bare})
