"""What `mulligan doctor` says of the place where traces and metrics go: with a real receiver of both, in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from mulligan.doctor.tracing import check_otlp
from tests.support.otlp_receiver import OtlpReceiver


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as there:
        yield there


async def findings() -> list[tuple[str, str, str]]:
    return [(each.check, each.state, each.text) for each in await check_otlp()]


async def test_without_an_endpoint_nothing_is_exported_and_that_is_no_problem() -> None:
    [(check, state, text)] = await findings()
    assert (check, state) == ("otlp", "ok")
    assert "no endpoint is set" in text


@pytest.mark.parametrize(("protocol", "name"), [("grpc", "gRPC"), ("http/protobuf", "HTTP")])
async def test_each_signal_is_said_to_be_accepted_if_it_is(
    protocol: str, name: str, receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = receiver.endpoint_grpc if protocol == "grpc" else receiver.endpoint_http
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    assert await findings() == [
        ("otlp traces", "ok", f"{url} accepts traces over {name}"),
        ("otlp metrics", "ok", f"{url} accepts metrics over {name}"),
    ]
    assert receiver.attempts == 2


async def test_a_signal_that_is_refused_is_a_problem_and_names_the_setting(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.refuse(400)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{receiver.endpoint_http}/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    [(check, state, text)] = await findings()
    assert (check, state) == ("otlp traces", "problem")
    assert "does not accept traces over HTTP; see OTEL_EXPORTER_OTLP_PROTOCOL" in text


async def test_a_place_that_takes_traces_alone_is_a_problem_for_metrics_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Jaeger is."""
    with OtlpReceiver(takes_metrics=False) as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint_http)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        assert [each[:2] for each in await findings()] == [("otlp traces", "ok"), ("otlp metrics", "problem")]


async def test_an_address_that_no_exporter_can_use_is_a_problem_that_shows_no_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://ada:secret@127.0.0.1:port/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    [(_, state, text)] = await findings()
    assert state == "problem"
    assert "secret" not in text
