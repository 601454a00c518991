"""`worker.py` as a process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from mulligan.devserver import DevServer
from tests.support.temporal import environment_of

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def worker_process(
    module: str, queue: str, server: DevServer, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker that serves the agents of a module on a task queue; killed at the end of the block if it still runs."""
    async with _worker(module, queue, server, environment, stderr=None) as process:
        yield process


@asynccontextmanager
async def logging_worker_process(
    module: str, queue: str, server: DevServer, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """As `worker_process`, with its stderr as a pipe."""
    async with _worker(module, queue, server, environment, stderr=asyncio.subprocess.PIPE) as process:
        yield process


@asynccontextmanager
async def _worker(
    module: str, queue: str, server: DevServer, environment: Mapping[str, str], *, stderr: int | None
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "worker.py", "--load", module, "--task-queue", queue, cwd=ROOT,
        env={**os.environ, **environment_of(server), "MULLIGAN_GRACE_SECONDS": "1", **environment},
        stdin=asyncio.subprocess.DEVNULL, stderr=stderr,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
