"""`mulligan worker` as a process, and somebody's own worker with the plugin (tests/support/own_worker.py)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from mulligan.devserver import DevServer
from tests.support.command_server import PIPE, CommandProcess, start_command
from tests.support.temporal import environment_of

Process = CommandProcess | asyncio.subprocess.Process


@asynccontextmanager
async def worker_process(
    module: str, queue: str, server: DevServer, kind: str = "ours", **environment: str
) -> AsyncIterator[CommandProcess]:
    """A worker that serves the agents of a module on a task queue; killed at the end of the block if it still runs."""
    async with _worker(module, queue, server, kind, environment, stderr=None) as process:
        yield process


@asynccontextmanager
async def logging_worker_process(
    module: str, queue: str, server: DevServer, kind: str = "ours", **environment: str
) -> AsyncIterator[CommandProcess]:
    """As `worker_process`, with its stderr as a pipe."""
    async with _worker(module, queue, server, kind, environment, stderr=PIPE) as process:
        yield process


@asynccontextmanager
async def _worker(
    module: str, queue: str, server: DevServer, kind: str, environment: Mapping[str, str], *, stderr: int | None
) -> AsyncIterator[CommandProcess]:
    env = {**os.environ, **environment_of(server), **environment}
    options = ("--load", module, "--task-queue", queue)
    if kind == "ours":
        process = await start_command("worker", *options, env={"MULLIGAN_GRACE_SECONDS": "1"} | env, stderr=stderr)
    else:
        process = await start_command(*options, env=env, stderr=stderr, module="tests.support.own_worker")
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
