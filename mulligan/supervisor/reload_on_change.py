"""`mulligan worker --reload`: a worker that starts again when a Python file changes, for development."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from watchfiles import PythonFilter, awatch

from mulligan.worker.logs import say

GRACE_SECONDS = "2"
"""How long running calls may take to end before the worker starts again, unless `MULLIGAN_GRACE_SECONDS` is set."""


def reload_on_change(options: Sequence[str]) -> int:
    """Run `mulligan worker` with these options until SIGTERM or Ctrl-C; start it again after each change below this folder.

    A worker that does not start, for example because of a syntax error, starts again after the next change.

    Returns:
        The exit code of the last worker.
    """
    return asyncio.run(_run([sys.executable, "-m", "mulligan", "worker", *options]))


async def _run(command: Sequence[str]) -> int:
    stop, changed = asyncio.Event(), asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    watching = asyncio.create_task(_watch(Path.cwd(), changed, stop))
    stopping = asyncio.create_task(stop.wait())
    code = 0
    try:
        while not stop.is_set():
            changed.clear()
            code = await _run_once(command, changed, stopping)
    finally:
        stop.set()
        await watching
    return code


async def _run_once(command: Sequence[str], changed: asyncio.Event, stopping: asyncio.Task[bool]) -> int:
    """Run the worker until a change, or the stop. A worker that ends by itself is waited for with them."""
    worker = await asyncio.create_subprocess_exec(*command, env={"MULLIGAN_GRACE_SECONDS": GRACE_SECONDS, **os.environ})
    ended, change = asyncio.create_task(worker.wait()), asyncio.create_task(changed.wait())
    try:
        await asyncio.wait({ended, change, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and not (changed.is_set() or stopping.done()):
            say(f"The worker has ended with code {worker.returncode}. It starts again when a Python file changes.")
            await asyncio.wait({change, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        change.cancel()
        if worker.returncode is None:
            with suppress(ProcessLookupError):
                worker.terminate()
    return await ended


async def _watch(folder: Path, changed: asyncio.Event, stop: asyncio.Event) -> None:
    """Report changes of Python files; virtual environments, caches and hidden folders are left out."""
    async for changes in awatch(folder, watch_filter=PythonFilter(), stop_event=stop):
        paths = sorted(path for _, path in changes)
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        say(f"{Path(paths[0]).relative_to(folder)}{more} changed: the worker starts again.")
        changed.set()
