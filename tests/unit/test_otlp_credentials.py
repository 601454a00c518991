"""A user and a password in an OTLP address are sent, and stand in no log, whatever becomes of the export."""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import quote

import pytest
from opentelemetry.sdk.metrics.export import MetricsData

from mulligan.observe import otlp
from tests.support.ports import free_ports

USERS = ["ada:s3cret-word", "ada:p@ss/w:rd#1", "token-only", "ü:ñ"]


class Collector(BaseHTTPRequestHandler):
    """Answers with the status of its path, and keeps what it was sent."""

    got: list[tuple[str, str | None]]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.got.append((self.path, self.headers.get("Authorization")))
        self.send_response(401 if "refused" in self.path else 200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    got: list[tuple[str, str | None]] = []
    server = HTTPServer(("127.0.0.1", 0), type("Handler", (Collector,), {"got": got}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", got
    server.shutdown()
    thread.join()
    server.server_close()


def quoted(user: str) -> str:
    return ":".join(quote(part, safe="") for part in user.split(":", 1))


def export(monkeypatch: pytest.MonkeyPatch, signal: otlp.Signal, environ: dict[str, str]) -> Any:
    """An export of nothing, by the exporter that a worker has; the exporter."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    if signal == "TRACES":
        exporter = otlp.span_exporter(environ, timeout=0.3)
        exporter.export(())
    else:
        exporter = otlp.metric_exporter(environ)
        exporter.export(MetricsData([]), timeout_millis=300)
    exporter.shutdown()
    return exporter


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("signal", ["TRACES", "METRICS"])
@pytest.mark.parametrize("place", ["/v1/{}", "/base/v1/{}", "own", "refused"])
def test_they_are_sent_over_http(
    collector: tuple[str, list[tuple[str, str | None]]], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, user: str, signal: otlp.Signal, place: str,
) -> None:  # fmt: skip
    """As basic authorization (RFC 7617), to the path that the exporter would take without them."""
    caplog.set_level(logging.DEBUG)
    host, got = collector
    base = {"/base/v1/{}": "/base/", "own": "/mine", "refused": "/refused"}.get(place, "")
    of_signal = f"{signal}_" if place in ("own", "refused") else ""
    environ = {f"OTEL_EXPORTER_OTLP_{of_signal}ENDPOINT": f"http://{quoted(user)}@{host}{base}"}
    export(monkeypatch, signal, {**environ, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"})
    path = base if of_signal else place.format(signal.lower())
    assert got[-1] == (path, f"Basic {base64.b64encode(user.encode()).decode()}")
    check_log(caplog, user)


@pytest.mark.parametrize("user", USERS[1:2])
@pytest.mark.parametrize("signal", ["TRACES", "METRICS"])
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_they_stand_in_no_log_where_nobody_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, user: str, signal: otlp.Signal, protocol: str
) -> None:
    caplog.set_level(logging.DEBUG)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{quoted(user)}@{address}"}
    exporter = export(monkeypatch, signal, {**environ, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol})
    assert address in exporter._endpoint
    if protocol == "grpc":
        assert f"Basic {base64.b64encode(user.encode()).decode()}" in str(exporter._headers)
    assert caplog.text  # that it has failed
    check_log(caplog, user)


def check_log(caplog: pytest.LogCaptureFixture, user: str) -> None:
    secret = user.rpartition(":")[2]
    for form in (secret, quote(secret, safe=""), base64.b64encode(user.encode()).decode()):
        assert form not in caplog.text


def test_an_address_without_them_is_left_to_the_exporter() -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318/@here"}
    assert otlp._without_credentials(environ, "TRACES") == {}


def test_a_header_of_the_environment_goes_before_them() -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:b@127.0.0.1:4318",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x,team=y",
    }
    assert otlp._without_credentials(environ, "TRACES")["headers"] == {"authorization": "Bearer x", "team": "y"}
