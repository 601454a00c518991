"""How many queries one process begins at once.

A query goes to the worker that has its run in memory. If the worker does not take it within the sticky timeout (2 s here),
Temporal gives it to any worker, with the whole history, and forgets which worker has the run. A burst of queries, as after
the restart of a server with many watchers, is answered slower then, not faster: some queries of 300 at once had no answer
after 20 s (docs/decisions/2026-11-27-bursts-of-queries.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from temporalio.service import RPCError

SLOTS = 8
"""Queries of one event loop at once."""
LONGEST_HOLD = 1.0
"""Seconds for which a query keeps its slot: one that nobody answers must not keep back those of other runs for longer."""
MOST_UNANSWERED = 10_000

_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
_unanswered: dict[str, None] = {}
"""Runs whose last query was not answered, the oldest first: probably no worker serves them. Their queries take no slot."""


@asynccontextmanager
async def query_slot(workflow_id: str) -> AsyncIterator[None]:
    """Wait for a slot for a query of a run, first come, first served. The block is the query.

    The slot is given back when the block ends or after `LONGEST_HOLD`.
    """
    slots = _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(SLOTS))
    try:
        if workflow_id in _unanswered:
            yield
        else:
            async with _Held(slots):
                yield
    except RPCError:
        _unanswered[workflow_id] = None
        if len(_unanswered) > MOST_UNANSWERED:
            del _unanswered[next(iter(_unanswered))]
        raise
    _unanswered.pop(workflow_id, None)


class _Held:
    """A slot while the block runs, for `LONGEST_HOLD` at most."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._over: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._slots.acquire()
        self._over = asyncio.get_running_loop().call_later(LONGEST_HOLD, self._free)

    async def __aexit__(self, *_: object) -> None:
        if self._over is not None:
            self._over.cancel()
            self._free()

    def _free(self) -> None:
        self._over = None
        self._slots.release()
