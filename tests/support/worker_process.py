"""`mulligan worker` as a process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from mulligan.devserver import DevServer
from tests.support.command_server import PIPE, CommandProcess, start_command
from tests.support.temporal import environment_of


@asynccontextmanager
async def worker_process(
    module: str, queue: str, server: DevServer, **environment: str
) -> AsyncIterator[CommandProcess]:
    """A worker that serves the agents of a module on a task queue; killed at the end of the block if it still runs."""
    async with _worker(module, queue, server, environment, stderr=None) as process:
        yield process


@asynccontextmanager
async def logging_worker_process(
    module: str, queue: str, server: DevServer, **environment: str
) -> AsyncIterator[CommandProcess]:
    """As `worker_process`, with its stderr as a pipe."""
    async with _worker(module, queue, server, environment, stderr=PIPE) as process:
        yield process


@asynccontextmanager
async def _worker(
    module: str, queue: str, server: DevServer, environment: Mapping[str, str], *, stderr: int | None
) -> AsyncIterator[CommandProcess]:
    process = await start_command(
        "worker", "--load", module, "--task-queue", queue,
        env={**os.environ, **environment_of(server), "MULLIGAN_GRACE_SECONDS": "1", **environment}, stderr=stderr,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
