"""Limits the runs that a worker keeps in memory to those that were active last.

The fault: the Core SDK has such a cache (`max_cached_workflows`), but a worker whose cache is full can freeze forever
(seen with temporalio 1.35): if a query and a workflow task of one run wait for room, one of the two activations is lost.
That run then keeps its place in the cache, and as it is always the next one to be evicted, no other run gets room. The
SDK logs "Extra buffered run should not have produced an activation" (docs/decisions/2026-11-22-queries-and-updates.md).
So the SDK's cache gets more room than it can need, and this module evicts the runs beyond our own limit, for which there
is no public API.

Upstream: no issue known; temporalio/sdk-rust issue 886 (open) has the same symptom with local activities. Needed with
temporalio 1.35.0. No quick test shows the freeze (90 s of queries and signals on short histories did not): to see it, run
tests/system/test_people_and_lost_caches.py with the SDK's own cache. A test shows that there is no public way to evict.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from itertools import islice
from threading import Lock

from temporalio.worker import Worker

from mulligan.errors import DeclarationError

IDLE_SECONDS = 1.0
"""How long a run must be idle before it is evicted for another one. If a run is evicted while the SDK already has a task for
it, that task may be lost, and Temporal sends it again only after 10 s."""


class WorkflowCache:
    """The runs in a worker's memory, the least recently active first. Each worker has one; it is thread-safe."""

    def __init__(self, size: int) -> None:
        """`size`: how many runs stay in memory between two workflow tasks; 0: none.

        The runs that were active in the last second may exceed it by the number of concurrent workflow tasks.
        """
        self.size = size
        self._max_active = size
        self._active_at: OrderedDict[str, float | None] = OrderedDict()
        """When each run was last active, by the monotonic clock; None while it is active."""
        self._lock = Lock()
        self._worker: Worker | None = None

    def limits(self, workflow_tasks: int) -> dict[str, int]:
        """Return the SDK's `max_cached_workflows` and `max_concurrent_workflow_tasks`.

        `workflow_tasks`: how many of them the worker should handle concurrently.

        Without a cache the SDK has room for one run, and lets the tasks of all others wait until they have timed out. So
        such a worker handles one task at a time.
        """
        if not self.size:
            return {"max_cached_workflows": 0, "max_concurrent_workflow_tasks": 1}
        self._max_active = self.size + workflow_tasks
        room = self._max_active + workflow_tasks
        return {"max_cached_workflows": room, "max_concurrent_workflow_tasks": workflow_tasks}

    def attach(self, worker: Worker) -> None:
        """Set the worker, before it runs.

        Raises:
            DeclarationError: this version of temporalio has no way to evict a run.
        """
        # The SDK has no public API for it.
        if not hasattr(getattr(worker, "_bridge_worker", None), "request_workflow_eviction"):
            raise DeclarationError(
                "Mulligan does not know this version of temporalio: it cannot remove a run from a worker's memory. "
                "Install temporalio 1.35."
            )
        self._worker = worker

    def mark_active(self, run_id: str) -> None:
        """A workflow task or a query of the run begins."""
        with self._lock:
            self._active_at[run_id] = None
            self._active_at.move_to_end(run_id)

    def mark_idle(self, run_id: str) -> None:
        """Note that a task was handled (the SDK may yet have to send its result). Evict runs if there are too many."""
        now = time.monotonic()
        with self._lock:
            self._active_at[run_id] = now
            surplus = len(self._active_at) - self.size if self.size else 0
            long_idle = (each for each, at in self._active_at.items() if at is not None and now - at >= IDLE_SECONDS)
            evicted = list(islice(long_idle, max(0, surplus)))
            if self.size and not evicted and len(self._active_at) > self._max_active:
                evicted = [run_id]
        for each in evicted:
            self.evict(each)

    def evict(self, run_id: str) -> None:
        """Remove a run from memory as soon as its workflow task is done; the next one replays the run."""
        self.forget(run_id)
        assert self._worker is not None
        self._worker._bridge_worker.request_workflow_eviction(run_id)

    def forget(self, run_id: str) -> None:
        """The run is no longer in memory."""
        with self._lock:
            self._active_at.pop(run_id, None)
