"""`worker.py` as a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mulligan.devserver import DevServer
from tests.support.temporal import environment_of

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def worker_process(
    module: str, queue: str, server: DevServer, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker that serves a module's agents on a queue; ended by its own id with the block, if it is still there."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "worker.py", "--load", module, "--task-queue", queue, cwd=ROOT,
        env={**os.environ, **environment_of(server), "MULLIGAN_GRACE_SECONDS": "1", **environment},
        stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
