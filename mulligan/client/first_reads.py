"""Limits how many feeds of a server read their run for the first time at the same time.

The watchers of a server that has been started again come at once, and each of their runs is queried. A query goes to the
worker that has its run in memory. If that does not take it within the sticky timeout (2 s here), Temporal offers it to any
worker, with the whole history, and forgets which worker has the run: the burst is answered slower, and some queries of 300
at once were not answered within 20 s (docs/decisions/2026-11-27-bursts-of-queries.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack

AT_ONCE = 8
LONGEST_HOLD, LONGEST_WAIT = 1.0, 10.0
"""Seconds for which a feed keeps its place, and waits for one: runs that no worker answers for must not keep others back."""


class FirstReads:
    """The places of one server process."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)

    async def begin(self) -> Callable[[], None]:
        """Wait for a place, first come, first served, for `LONGEST_WAIT` at most.

        Returns:
            What is called when the run has been read, or could not be; calls after the first one do nothing.
        """
        try:
            async with asyncio.timeout(LONGEST_WAIT):
                await self._places.acquire()
        except TimeoutError:
            return lambda: None
        place = ExitStack()
        place.callback(self._places.release)
        place.callback(asyncio.get_running_loop().call_later(LONGEST_HOLD, place.close).cancel)
        return place.close
