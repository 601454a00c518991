"""Where the program is kept, and who may put it there: one process at a time."""

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
from mulligan.devserver.errors import FetchError

VERSION = "1.5.1"
"""Of Temporal's CLI; `go.mod` names the same."""

SECONDS_BETWEEN_LINES = 5
_SECONDS_BETWEEN_TRIES = 0.2
_SCRATCH_PREFIX = "making-"


def cached_temporal() -> Path:
    """Where the program is, or will be, on this machine."""
    return user_cache_path("mulligan") / f"temporal-cli-{VERSION}"


@asynccontextmanager
async def locked_scratch_folder(cached: Path, progress: Callable[[str], None]) -> AsyncIterator[Path]:
    """Wait until no other process makes the program, then hold the others off and give a scratch folder beside it.

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
        # What a power cut left: under the lock nobody else can own it.
        for left in cached.parent.glob(f"{_SCRATCH_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)
        async with scratch_folder(cached.parent, _SCRATCH_PREFIX) as scratch:
            yield scratch
    finally:
        lock.release()


async def _acquire(lock: FileLock, what: str, progress: Callable[[str], None]) -> None:
    # Polled, not waited for in a thread: a thread could not be cancelled, and Ctrl-C would hang.
    began = said = time.monotonic()
    waiting = False
    while True:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            now = time.monotonic()
            if not waiting or now - said >= SECONDS_BETWEEN_LINES:
                progress(f"waiting for another process that fetches {what}: {now - began:.0f} s")
                waiting, said = True, now
            await asyncio.sleep(_SECONDS_BETWEEN_TRIES)
        else:
            return
