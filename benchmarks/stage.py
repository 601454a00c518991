"""The processes of a measurement: a new Temporal server, the endpoint and the workers, ONE process each; this one drives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import uuid
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from temporalio.client import Client, WorkflowHandle

from benchmarks.contenders import ALL, ROOT, WorkerKind, kinds
from benchmarks.process import Usage, usage_of
from mulligan.devserver import find_temporal

# From the dev server: starts a process that ends with this one, however that ends. The tests start Jaeger with it too.
from mulligan.devserver._process import process_group
from mulligan.devserver.dev_server import DYNAMIC_CONFIG
from mulligan.wire.search_attributes import SEARCH_ATTRIBUTES

_SECONDS_TO_START = 90
_LAST_WORDS = 20
_CLEARED = ("MULLIGAN_", "TEMPORAL_", "OTEL_", "OPENAI_")


class WorkerDiedError(Exception):
    """A process ended, or a run does not start; the message has the last output."""


@dataclass
class Process:
    """A process of the measurement, and the last lines of its output."""

    name: str
    pid: int
    process: asyncio.subprocess.Process
    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_WORDS))

    def usage(self) -> Usage:
        """Its resource use so far."""
        return usage_of(self.pid)


@dataclass
class Stage:
    """The server, the endpoint and the workers of a measurement."""

    client: Client
    endpoint_url: str
    processes: dict[str, Process]
    http: aiohttp.ClientSession
    metrics_port: int
    """Of the server's own metrics."""

    async def start(self, name: str, steps: int, *, hold: bool = False) -> WorkflowHandle[Any, Any]:
        """Start a run of a contender. The endpoint counts by the run's id."""
        contender, run = ALL[name], uuid.uuid4().hex[:10]
        arguments = contender.arguments(steps, run, hold)
        queue = contender.worker.name
        handle = await self.client.start_workflow(contender.workflow, args=arguments, id=run, task_queue=queue)
        if contender.message is not None:
            # The protocol of Temporal's agent harness. The update returns when the turn begins; `close` waits for its end.
            await handle.execute_update("send_agent_message", contender.message(steps, run, hold))
            await handle.signal("close")
        return handle

    async def endpoint_stats(self) -> dict[str, Any]:
        """The counters of the endpoint."""
        async with self.http.get(f"{self.endpoint_url}/stats") as answer:
            stats: dict[str, Any] = await answer.json()
            return stats

    def worker(self, name: str) -> Process:
        """The worker of a contender."""
        return self.processes[ALL[name].worker.name]

    def check(self) -> None:
        """Check that all processes run.

        Raises:
            WorkerDiedError: one has ended.
        """
        for process in self.processes.values():
            if process.process.returncode is not None:
                told = "\n".join(process.last_words) or "it said nothing"
                raise WorkerDiedError(f"{process.name} ended with {process.process.returncode}: {told}")


@asynccontextmanager
async def stage(
    contenders: Sequence[str], *, stock: bool = False, settings: Sequence[str] = (), listed: bool = False
) -> AsyncIterator[Stage]:
    """Start the processes for these contenders. Each worker has served a run of three steps before the block begins.

    Args:
        contenders: names in `contenders.ALL`.
        stock: Temporal's dev server with its default settings, instead of those of `mulligan dev`.
        settings: more dynamic settings of the server.
        listed: whether the server has the search attributes of a deployment, which runs then set.
    """
    port, model_port, metrics_port = (_free_port() for _ in range(3))
    program = await find_temporal(print)
    server: list[str | Path] = [
        program,
        "server",
        "start-dev",
        "--headless",
        "--ip",
        "127.0.0.1",
        "--log-level",
        "error",
    ]
    server += ["--port", str(port), "--metrics-port", str(metrics_port)]
    for attribute in SEARCH_ATTRIBUTES if listed else ():
        server += ["--search-attribute", f"{attribute.name}=Keyword"]
    for setting in (*(() if stock else DYNAMIC_CONFIG), *settings):
        server += ["--dynamic-config-value", setting]
    url = f"http://127.0.0.1:{model_port}"
    common = {name: value for name, value in os.environ.items() if not name.startswith(_CLEARED)}
    common |= {
        "TEMPORAL_ADDRESS": f"127.0.0.1:{port}",
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "benchmark",
        "PYTHONPATH": str(ROOT),
    }
    async with AsyncExitStack() as stack:
        processes = {"server": await stack.enter_async_context(running("server", server, common))}
        endpoint: list[str | Path] = [sys.executable, "-m", "benchmarks.endpoint", str(model_port)]
        processes["endpoint"] = await stack.enter_async_context(running("endpoint", endpoint, common))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        made = Stage(await _connected(port), url, processes, http, metrics_port)
        for kind in kinds(contenders):
            command = kind.command(kind.name)
            entered = await stack.enter_async_context(running(kind.name, command, common | kind.environment))
            processes[kind.name] = entered
        for name in contenders:
            await _warm_up(made, name)
        yield made


async def _warm_up(made: Stage, name: str) -> None:
    """Wait for the worker, so that its imports and the costs of its first run are not measured."""
    # In a task from the start on: a session's message waits for the worker, which may have ended.
    ended = asyncio.create_task(_short_run(made, name))
    for _ in range(_SECONDS_TO_START):
        await asyncio.wait({ended}, timeout=1)
        if ended.done():
            await ended
            return
        made.check()
    ended.cancel()
    told = "\n".join(made.worker(name).last_words) or "it said nothing"
    raise WorkerDiedError(f"{name} did not end a run of 3 steps within {_SECONDS_TO_START} s: {told}")


async def _short_run(made: Stage, name: str) -> None:
    await (await made.start(name, 3)).result()


@asynccontextmanager
async def running(name: str, command: Sequence[str | Path], environment: dict[str, str]) -> AsyncIterator[Process]:
    """Start a process of a measurement, and end it with the block."""
    async with process_group(*command, cwd=ROOT, env=environment) as started:
        process = Process(name, started.pid, started)

        async def listen() -> None:
            assert started.stdout is not None
            async for line in started.stdout:
                process.last_words.append(line.decode(errors="replace").rstrip())

        listening = asyncio.create_task(listen())
        try:
            yield process
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def _connected(port: int) -> Client:
    async with asyncio.timeout(_SECONDS_TO_START):
        while True:
            with contextlib.suppress(RuntimeError):
                return await Client.connect(f"127.0.0.1:{port}")
            await asyncio.sleep(0.05)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def prepare(kind: WorkerKind) -> None:
    """Create the environment of a rival from its pinned versions, unless it exists.

    Raises:
        subprocess.CalledProcessError: uv failed; its stderr says why.
    """
    if kind.project is not None:
        # `uv run` sets UV to its own path.
        uv = os.environ.get("UV", "uv")
        subprocess.run([uv, "sync", "--quiet", "--project", str(kind.project)], check=True)


async def replay(kind: WorkerKind, file: Path, times: int) -> str:
    """The JSON that the contender's replay of a history prints."""
    environment = os.environ | {"OPENAI_API_KEY": "benchmark", "PYTHONPATH": str(ROOT)} | kind.environment
    process = await asyncio.create_subprocess_exec(
        *kind.replay(file, times), cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    if process.returncode != 0:
        raise WorkerDiedError(f"the replay by {kind.name} ended with {process.returncode}")
    return told.decode()
