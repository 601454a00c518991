"""An outage of the collector loses no spans; a refusal is not repeated; a worker that ends does not wait for the collector."""

from __future__ import annotations

import asyncio
import logging

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGRPC
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHTTP
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter

from mulligan.observe import retrying_export
from mulligan.observe.span_export import otlp_processor
from tests.support.otlp_receiver import OtlpReceiver

ATTEMPTS_OF_EXPORTER = 2
"""How often the exporter itself tries within `SECONDS`: at once and after about a second."""
SECONDS = 1.5


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="opentelemetry")


def exporter(protocol: str, receiver: OtlpReceiver) -> SpanExporter:
    if protocol == "grpc":
        return OverGRPC(endpoint=receiver.endpoint_grpc, timeout=SECONDS)
    return OverHTTP(endpoint=receiver.endpoint_http + "/v1/traces", timeout=SECONDS)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_spans_of_an_outage_that_lasts_longer_than_the_exporter_tries_arrive_once(protocol: str) -> None:
    with OtlpReceiver() as receiver:
        provider = TracerProvider()
        provider.add_span_processor(otlp_processor(exporter(protocol, receiver), seconds=0))
        receiver.refuse(503)
        provider.get_tracer("t").start_span("ended before").end()
        await asyncio.to_thread(receiver.wait_for_attempts, ATTEMPTS_OF_EXPORTER + 1)
        provider.get_tracer("t").start_span("ended meanwhile").end()
        receiver.accept()
        await asyncio.to_thread(receiver.wait_for_spans, 2)
        await asyncio.to_thread(provider.shutdown)
        assert sorted(span.name for span in receiver.spans()) == ["ended before", "ended meanwhile"]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_spans_that_the_collector_refuses_are_sent_once(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying_export, "REFUSED_WITHIN", 60)  # whatever else this machine does
    with OtlpReceiver() as receiver:
        provider = TracerProvider()
        provider.add_span_processor(otlp_processor(exporter(protocol, receiver), seconds=0))
        receiver.refuse(401)
        provider.get_tracer("t").start_span("refused").end()
        await asyncio.to_thread(receiver.wait_for_attempts, 1)
        receiver.accept()
        provider.get_tracer("t").start_span("accepted").end()
        await asyncio.to_thread(provider.shutdown)
        assert receiver.attempts == 2
        assert [span.name for span in receiver.spans()] == ["accepted"]


async def test_a_shutdown_during_an_outage_tries_no_longer_than_the_exporter_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retrying_export, "SECONDS_BETWEEN", 60)  # which the shutdown ends
    with OtlpReceiver() as receiver:
        provider = TracerProvider()
        provider.add_span_processor(otlp_processor(exporter("http", receiver), seconds=0))
        receiver.refuse(503)
        provider.get_tracer("t").start_span("lost").end()
        await asyncio.to_thread(receiver.wait_for_attempts, 1)
        await asyncio.to_thread(provider.shutdown)
        assert receiver.attempts <= ATTEMPTS_OF_EXPORTER
