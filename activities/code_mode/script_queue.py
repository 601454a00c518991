"""`ScriptQueue`: which scripts of a worker run now, and which of those that wait are next."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

OF_ONE_RUN = 2
"""How many scripts of one run run at once."""


class ScriptQueue:
    """Places for `most` scripts. Runs take turns: how many scripts one has waiting delays its own only."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: Counter[Hashable] = Counter()
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        """By run. The run whose turn it is comes first."""

    @asynccontextmanager
    async def place(self, run: Hashable) -> AsyncIterator[None]:
        """Wait for a place, and hold it for the time of the block."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run, deque()).append(turn)
        self._give()
        try:
            await turn
            yield
        finally:
            if not turn.cancelled():  # while it waited: then `_give` forgets it
                self._running[run] -= 1
                self._running += Counter()  # without those that have none left
                self._give()

    def _give(self) -> None:
        """Give the free places to the runs that have the fewest; of these to the one that has waited longest for a turn."""
        while self._running.total() < self._most and self._waiting:
            run = min(self._waiting, key=lambda each: self._running[each])
            if self._running[run] >= OF_ONE_RUN:
                return
            turn = self._waiting[run].popleft()
            self._waiting.move_to_end(run)
            if not self._waiting[run]:
                del self._waiting[run]
            if not turn.cancelled():
                self._running[run] += 1
                turn.set_result(None)
