"""Which runs a worker keeps in memory: those that were active last.

The Core SDK has such a cache (`max_cached_workflows`), but a worker whose cache is full can freeze for ever (seen with
temporalio 1.35): where a query and a workflow task of one run wait for room, one of the two activations is lost. That run
then keeps its place in the cache, and as it is always the next one to make room, no other run gets any. The SDK logs "Extra
buffered run should not have produced an activation" (docs/decisions/2026-11-22-queries-and-updates.md). So the SDK's cache
is given more room than it can need, and the runs beyond our own limit are removed from it here.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from itertools import islice
from threading import Lock

from temporalio.worker import Worker

from mulligan.errors import DeclarationError

__all__ = ["WorkflowCache"]

IDLE = 1.0
"""Seconds without activity after which a run makes room for another one. A run that is removed while the SDK has tasks for
it, of which we do not know yet, may lose one of them, and Temporal sends that again only after 10 s."""


class WorkflowCache:
    """The runs in a worker's memory, the least recently active first. One for a worker; usable from any thread."""

    def __init__(self, size: int) -> None:
        """`size`: how many runs stay in memory between two workflow tasks; 0: none. Those that were active in the last
        second may be more, by as many as the worker handles workflow tasks at once.
        """
        self.size = size
        self._most = size
        self._active_at: OrderedDict[str, float | None] = OrderedDict()
        """When each run was active last, by the monotonic clock; None: it is active."""
        self._lock = Lock()
        self._worker: Worker | None = None

    def limits(self, workflow_tasks: int) -> dict[str, int]:
        """The SDK's `max_cached_workflows` and `max_concurrent_workflow_tasks`.

        `workflow_tasks`: how many of them the worker should handle at once.

        Without a cache the SDK has room for one run, and keeps the tasks of all others waiting until they have timed out. So
        such a worker takes one task at a time.
        """
        if not self.size:
            return {"max_cached_workflows": 0, "max_concurrent_workflow_tasks": 1}
        self._most = self.size + workflow_tasks
        room = self._most + workflow_tasks
        return {"max_cached_workflows": room, "max_concurrent_workflow_tasks": workflow_tasks}

    def attach(self, worker: Worker) -> None:
        """Name the worker, before it runs.

        Raises:
            DeclarationError: this version of temporalio gives no way to remove a run from memory.
        """
        # The SDK has no public way to do so.
        if not hasattr(getattr(worker, "_bridge_worker", None), "request_workflow_eviction"):
            raise DeclarationError(
                "Mulligan does not know this version of temporalio: it cannot remove a run from a worker's memory. "
                "Install temporalio 1.35."
            )
        self._worker = worker

    def active(self, run_id: str) -> None:
        """A workflow task or a query of a run is handled."""
        with self._lock:
            self._active_at[run_id] = None
            self._active_at.move_to_end(run_id)

    def idle(self, run_id: str) -> None:
        """It has been handled, but for what the SDK still has to send. Where there are too many runs, some are removed."""
        now = time.monotonic()
        with self._lock:
            self._active_at[run_id] = now
            surplus = len(self._active_at) - self.size if self.size else 0
            long_idle = (each for each, at in self._active_at.items() if at is not None and now - at >= IDLE)
            removed = list(islice(long_idle, max(0, surplus)))
            if self.size and not removed and len(self._active_at) > self._most:
                removed = [run_id]
        for each in removed:
            self.evict(each)

    def evict(self, run_id: str) -> None:
        """Remove a run as soon as its workflow task is done: the next one replays it."""
        self.removed(run_id)
        assert self._worker is not None
        self._worker._bridge_worker.request_workflow_eviction(run_id)

    def removed(self, run_id: str) -> None:
        """A run is out of memory."""
        with self._lock:
            self._active_at.pop(run_id, None)
