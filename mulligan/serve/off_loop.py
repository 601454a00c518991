"""Runs what takes long with a large body outside of the event loop, which all other requests need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

SHORT_BYTES = 16_000
"""Bodies of this many bytes are read within 3 ms. They do not wait until the large ones of others are read."""
THREADS = 2
"""More would not read faster, as they share one interpreter lock, and the event loop would wait longer for it."""

T = TypeVar("T")
_threads = ThreadPoolExecutor(THREADS, "mulligan-body")


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises. `size`: bytes of what it reads; a short body is read at once."""
    if size <= SHORT_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_threads, work)
