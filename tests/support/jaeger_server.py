"""A real Jaeger v2 with storage in memory for the time of a block, and its query API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from mulligan.devserver._process import process_group
from tests.support.ports import free_ports

_CONFIG = Path(__file__).parent / "jaeger" / "config.yaml"


@dataclass(frozen=True)
class JaegerServer:
    """The addresses on which it listens."""

    query_url: str
    otlp_url: str

    def environment(self) -> dict[str, str]:
        """The environment that makes OpenTelemetry's exporters send traces here. Jaeger accepts no metrics."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.otlp_url, "OTEL_METRICS_EXPORTER": "none"}

    async def get(self, path: str) -> str:
        """What it answers to a request, as text."""
        async with httpx2.AsyncClient() as client:
            return (await client.get(f"{self.query_url}/{path}")).raise_for_status().text

    async def spans(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans of a trace as OTLP JSON; none if Jaeger does not know the trace."""
        async with httpx2.AsyncClient() as client:
            answer = await client.get(f"{self.query_url}/api/v3/traces/{trace_id}")
        if answer.status_code == httpx2.codes.NOT_FOUND:
            return []
        resources = answer.raise_for_status().json()["result"]["resourceSpans"]
        return [span for resource in resources for scope in resource["scopeSpans"] for span in scope["spans"]]


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    """A span's attributes by name."""
    return {pair["key"]: _value(pair["value"]) for pair in span.get("attributes", [])}


def _value(value: dict[str, Any]) -> Any:
    [(kind, plain)] = value.items()
    if kind == "intValue":
        return int(plain)
    return [_value(item) for item in plain.get("values", [])] if kind == "arrayValue" else plain


@asynccontextmanager
async def jaeger_server(program: Path) -> AsyncIterator[JaegerServer]:
    """Run `program` on free ports of the loopback."""
    otlp, query = free_ports(2)
    ports = {"OTLP_PORT": str(otlp), "QUERY_PORT": str(query)}
    async with process_group(program, "--config", _CONFIG, env=ports) as process:
        assert process.stdout
        log: list[bytes] = []
        reading = asyncio.create_task(_read(process.stdout, log))
        url = f"http://127.0.0.1:{query}"
        async with httpx2.AsyncClient() as client:
            while True:
                try:
                    await client.get(f"{url}/api/v3/services")
                    break
                except httpx2.TransportError:
                    assert process.returncode is None, b"".join(log).decode()
                    await asyncio.sleep(0.1)
        try:
            yield JaegerServer(url, f"http://127.0.0.1:{otlp}")
        finally:
            process.kill()
            await reading


async def _read(stream: asyncio.StreamReader, into: list[bytes]) -> None:
    async for line in stream:
        into.append(line)
