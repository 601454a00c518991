"""Temporal workers that run while a block runs, and that cannot stop without a word.

`async with temporalio.worker.Worker(...)` cancels the task that entered the block when the worker fails. If that task has
ended by then, as that of a test's fixture has, the cancellation reaches nobody and nothing is said: the process goes on as
if it served. Nor does `Worker.run()` always raise: when the polls for workflow tasks and those for activity tasks end with
an error one after the other, temporalio 1.35 waits for ever (docs/decisions/2026-11-22-a-worker-without-pollers.md).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from temporalio.worker import Worker

from mulligan.worker.poll_monitor import PollMonitor

__all__ = ["WorkerGroup", "WorkerStoppedError"]

_GRPC_STATUS = re.compile(r'Status \{ code: [\'"]?(.+?)[\'"]?, message: "((?:[^"\\]|\\.)*)"')


class WorkerStoppedError(RuntimeError):
    """A Temporal worker stopped by itself. The message names its task queue and the reason, in one line."""


class WorkerGroup:
    """Workers of one process that start together and stop together.

    Give each worker `on_fatal_error=group.on_fatal_error(task_queue)`, so that an error is known before the drain.

    Args:
        report: takes each line for people.
        seconds_to_stop: how long a group that has failed may drain; what has not ended by then is abandoned.
    """

    def __init__(self, report: Callable[[str], None], seconds_to_stop: float) -> None:
        self.failure: WorkerStoppedError | None = None
        """Why a worker of the group stopped although nobody asked it to; None while all run."""
        self._report = report
        self._seconds_to_stop = seconds_to_stop
        self._has_failed = asyncio.Event()
        self.monitors: Sequence[PollMonitor] = ()
        """What watches the workers' polls."""
        self._block: asyncio.Task[object] | None = None
        self._cancelled_block = False
        self._stopping = False

    @property
    def unready(self) -> str:
        """Why the group serves nothing, or not all that it should; empty while it serves."""
        if self.failure is not None:
            return str(self.failure)
        return "; ".join(monitor.reason for monitor in self.monitors if monitor.reason)

    async def until_failed(self) -> WorkerStoppedError:
        """Wait for `failure`: for whoever would else wait for what the workers no longer do."""
        await self._has_failed.wait()
        assert self.failure is not None
        return self.failure

    def on_fatal_error(self, task_queue: str) -> Callable[[BaseException], Awaitable[None]]:
        """What a worker calls when it must stop, before it drains."""

        async def failed(error: BaseException) -> None:
            self._failed(task_queue, error)

        return failed

    @asynccontextmanager
    async def running(self, workers: Sequence[Worker], monitors: Sequence[PollMonitor] = ()) -> AsyncIterator[None]:
        """Run the workers, and watch their polls, while the block runs.

        When a worker fails, that is reported and the block is cancelled.

        The block may be left by another task than the one that entered it. Then it cannot be cancelled: `failure` is set,
        the report is made, and the error is raised when the block is left.

        Raises:
            WorkerStoppedError: a worker stopped by itself.
        """
        self._block = block = asyncio.current_task()
        cancelling = block.cancelling() if block else 0
        self.monitors = monitors
        running = [asyncio.create_task(self._run(worker)) for worker in workers]
        watching = [asyncio.create_task(monitor.watch()) for monitor in monitors]
        try:
            yield
        except asyncio.CancelledError:
            # As asyncio.timeout does: a cancellation by somebody else, besides ours, goes on.
            if not self._cancelled_block or block is None or block.uncancel() > cancelling:
                raise
            assert self.failure is not None
            raise self.failure from self.failure.__cause__
        finally:
            self._stopping = True
            for task in watching:
                task.cancel()
            await self._stop(workers, running)
            await asyncio.gather(*watching, return_exceptions=True)
        if self.failure is not None:
            raise self.failure

    async def _stop(self, workers: Sequence[Worker], running: Sequence[asyncio.Task[None]]) -> None:
        # Together: one after the other they would take the grace time twice.
        ending = [*running, *(asyncio.create_task(worker.shutdown()) for worker in workers)]
        failed = asyncio.create_task(self._has_failed.wait())
        ended = asyncio.create_task(asyncio.wait(ending))
        await asyncio.wait((failed, ended), return_when=asyncio.FIRST_COMPLETED)
        if self.failure is not None:
            await asyncio.wait(ending, timeout=self._seconds_to_stop)
        for task in (*ending, failed, ended):
            task.cancel()
        await asyncio.gather(*ending, failed, ended, return_exceptions=True)

    async def _run(self, worker: Worker) -> None:
        try:
            await worker.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker has stopped
            self._failed(worker.task_queue, error)
        else:
            if not self._stopping:
                self._failed(worker.task_queue, RuntimeError("it ended, and gave no reason"))

    def _failed(self, task_queue: str, error: BaseException) -> None:
        if self.failure is not None:
            # Only the first reason is reported: a second is most often the same error, at the end of the drain.
            return
        self.failure = WorkerStoppedError(f"the worker of task queue {task_queue!r} has stopped: {reason_of(error)}")
        self.failure.__cause__ = error
        self._has_failed.set()
        self._report(f"error: {self.failure}")
        if self._block is not None and not self._stopping:
            self._cancelled_block = self._block.cancel()


def reason_of(error: BaseException) -> str:
    """The first cause of a worker's end, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = str(error)
    if status := _GRPC_STATUS.search(said):
        # The SDK's text ends in the status as Rust prints it, with its bytes.
        return f"{status[2]} ({status[1]})"
    return said.splitlines()[0] if said else type(error).__name__
