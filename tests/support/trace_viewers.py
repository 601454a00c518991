"""Arize Phoenix and MLflow, real viewers of traces, from the package index and in environments of their own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx2

from mulligan.devserver._process import process_group
from tests.support.own_environment import own_environment
from tests.support.ports import free_ports

PHOENIX, MLFLOW = "20.26.1", "3.17.2"
"""Versions on PyPI (Elastic License 2.0, which these tests only run; Apache-2.0). Their environments have 1.1 GB."""
SECONDS = 180
"""Until one answers: it creates its database, and imports many packages."""


@dataclass(frozen=True)
class ShownTrace:
    """What a viewer says of a trace.

    Attributes:
        status: Of the whole trace, in the viewer's own word.
        root: The name of its first span.
        tokens: The sums of input and output tokens that the viewer makes; None while it has none.
        session: The id under which the viewer groups traces.
        errors: How many of its spans are errors.
        failed: Whether the viewer's filter for failed runs (docs/traces.md) finds it.
    """

    status: str
    root: str
    tokens: tuple[int, int] | None
    session: str
    errors: int
    failed: bool


class Viewer(Protocol):
    """A running viewer."""

    otlp_url: str

    async def trace(self, trace_id: str, failed_runs: str) -> ShownTrace | None:
        """What it shows of a trace, by its API; None while it does not have it. `failed_runs`: the filter."""


class Phoenix:
    """A running Phoenix."""

    def __init__(self, url: str, otlp_url: str) -> None:
        self.url, self.otlp_url = url, otlp_url

    async def trace(self, trace_id: str, failed_runs: str) -> ShownTrace | None:
        """What its pages read, by GraphQL."""
        query = """query ($id: String!, $filter: String!) { getTraceByOtelId(traceId: $id) {
            errorCount session { sessionId }
            rootSpan { name propagatedStatusCode cumulativeTokenCountPrompt cumulativeTokenCountCompletion }
            spans(first: 100, filterCondition: $filter) { edges { node { name } } } } }"""
        variables = {"id": trace_id, "filter": failed_runs}
        async with httpx2.AsyncClient() as client:
            sent = {"query": query, "variables": variables}
            answer = (await client.post(f"{self.url}/graphql", json=sent, timeout=30)).raise_for_status().json()
        assert "errors" not in answer, answer
        trace = answer["data"]["getTraceByOtelId"]
        if trace is None or trace["rootSpan"] is None:
            return None
        root = trace["rootSpan"]
        return ShownTrace(
            root["propagatedStatusCode"],
            root["name"],
            (int(root["cumulativeTokenCountPrompt"] or 0), int(root["cumulativeTokenCountCompletion"] or 0)),
            trace["session"]["sessionId"],
            trace["errorCount"],
            bool(trace["spans"]["edges"]),
        )

    async def attributes(self, trace_id: str) -> list[tuple[str, dict[str, Any]]]:
        """The name and the attributes of each span of a trace, as its pages read them."""
        query = """query ($id: String!) { getTraceByOtelId(traceId: $id) {
            spans(first: 100) { edges { node { name attributes } } } } }"""
        async with httpx2.AsyncClient() as client:
            sent = {"query": query, "variables": {"id": trace_id}}
            answer = (await client.post(f"{self.url}/graphql", json=sent, timeout=30)).raise_for_status().json()
        assert "errors" not in answer, answer
        trace = answer["data"]["getTraceByOtelId"] or {"spans": {"edges": []}}
        nodes = [edge["node"] for edge in trace["spans"]["edges"]]
        return [(node["name"], json.loads(node["attributes"])) for node in nodes]


class MLflow:
    """A running MLflow."""

    def __init__(self, url: str) -> None:
        self.url = self.otlp_url = url

    async def trace(self, trace_id: str, failed_runs: str) -> ShownTrace | None:
        """What its pages read."""
        traces = {each["trace_id"]: each for each in await self._search("")}
        info = traces.get(f"tr-{trace_id}")
        if info is None:
            return None
        failed = {each["trace_id"] for each in await self._search(failed_runs)}
        spans = (await self._spans(info["trace_id"])) or []
        usage = info["trace_metadata"].get("mlflow.trace.tokenUsage")
        tokens = httpx2.Response(200, text=usage).json() if usage else None
        return ShownTrace(
            info["state"],
            next((span["name"] for span in spans if not span.get("parent_span_id")), ""),
            (tokens["input_tokens"], tokens["output_tokens"]) if tokens else None,
            info["trace_metadata"].get("mlflow.trace.session", ""),
            sum(span["status"].get("code") == "STATUS_CODE_ERROR" for span in spans),
            info["trace_id"] in failed,
        )

    async def _search(self, filter_text: str) -> list[dict[str, Any]]:
        location = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}
        sent = {"locations": [location], "max_results": 100, **({"filter": filter_text} if filter_text else {})}
        async with httpx2.AsyncClient() as client:
            answer = await client.post(f"{self.url}/api/3.0/mlflow/traces/search", json=sent, timeout=30)
        traces: list[dict[str, Any]] = answer.raise_for_status().json().get("traces", [])
        return traces

    async def _spans(self, trace_id: str) -> list[dict[str, Any]]:
        async with httpx2.AsyncClient() as client:
            path = f"{self.url}/api/3.0/mlflow/traces/get"
            answer = await client.get(path, params={"trace_id": trace_id, "allow_partial": "true"}, timeout=30)
        spans: list[dict[str, Any]] = answer.raise_for_status().json()["trace"].get("spans", [])
        return spans


@asynccontextmanager
async def phoenix(folder: Path) -> AsyncIterator[Phoenix]:
    """A Phoenix on free ports of the loopback. `folder`: an empty one, for its data."""
    installed = await own_environment("phoenix", PHOENIX, f"arize-phoenix=={PHOENIX}")
    http, grpc = free_ports(2)
    environment = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(http),
        "PHOENIX_GRPC_PORT": str(grpc),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    }
    command: list[str | Path] = [installed / "bin/python", installed / "bin/phoenix", "serve"]
    url = f"http://127.0.0.1:{http}"
    async with _server(command, environment, folder, f"{url}/healthz"):
        yield Phoenix(url, f"http://127.0.0.1:{grpc}")


@asynccontextmanager
async def mlflow(folder: Path) -> AsyncIterator[MLflow]:
    """An MLflow on a free port of the loopback. `folder`: an empty one, for its data."""
    installed = await own_environment("mlflow", MLFLOW, f"mlflow=={MLFLOW}")
    [port] = free_ports(1)
    environment = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command: list[str | Path] = [
        installed / "bin/python", installed / "bin/mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
        "--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
        "--default-artifact-root", str(folder / "artifacts"),
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    async with _server(command, environment, folder, f"{url}/health"):
        yield MLflow(url)


@asynccontextmanager
async def _server(
    command: list[str | Path], environment: Mapping[str, str], folder: Path, ready: str
) -> AsyncIterator[None]:
    """A process from the moment at which `ready` answers 200 to the end of the block."""
    path = os.pathsep.join([str(Path(command[0]).parent), os.environ["PATH"]])
    environment = {"PATH": path, "HOME": str(folder), **environment}
    async with process_group(*command, cwd=folder, env=environment) as process:
        assert process.stdout
        log: list[bytes] = []
        reading = asyncio.create_task(_read(process.stdout, log))
        try:
            await _until_ready(ready, process, log)
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its children have the pipe, too
            await reading


async def _until_ready(url: str, process: asyncio.subprocess.Process, log: list[bytes]) -> None:
    async with asyncio.timeout(SECONDS), httpx2.AsyncClient() as client:
        while process.returncode is None:
            try:
                if (await client.get(url)).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.2)
    raise RuntimeError(b"".join(log).decode()[-2000:])


async def _read(stream: asyncio.StreamReader, into: list[bytes]) -> None:
    async for line in stream:
        into.append(line)
