"""Waits until somebody has told a worker to shut down, before it has drained.

The SDK has no public way to wait for it: `is_shutdown` is true only after the drain (temporalio 1.35.0; no upstream issue
known).
"""

from __future__ import annotations

from temporalio.worker import Worker


async def until_shutdown(worker: Worker) -> None:
    """Wait until `worker.shutdown()` was called."""
    await worker._shutdown_event.wait()
