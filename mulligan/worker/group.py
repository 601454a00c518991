"""Runs Temporal workers while a block runs, and reports a worker that stops by itself.

`async with temporalio.worker.Worker(...)` cancels the task that entered the block when the worker fails. If that task has
ended by then, like the task of a test's fixture, the cancellation has no effect and nothing is logged: the process continues
as if it served. `Worker.run()` does not always raise either: if the polls for workflow tasks and for activity tasks end with
an error one after the other, temporalio 1.35 waits forever (docs/decisions/2026-11-22-a-worker-without-pollers.md).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from temporalio.worker import Worker

from mulligan.worker.poll_monitor import PollMonitor

_GRPC_STATUS = re.compile(r'Status \{ code: [\'"]?(.+?)[\'"]?, message: "((?:[^"\\]|\\.)*)"')


class WorkerStoppedError(RuntimeError):
    """A Temporal worker stopped by itself. The message is the reason, in one line."""


class WorkerGroup:
    """Workers of one process that start together and stop together.

    Pass `on_fatal_error=group.on_fatal_error(task_queue)` to each worker, so that an error is known before the drain.

    Args:
        report: called with each line that operators should see.
        seconds_to_stop: how long a group that has failed may drain; what still runs then is abandoned.
    """

    def __init__(self, report: Callable[[str], None], seconds_to_stop: float) -> None:
        self.failure: WorkerStoppedError | None = None
        """Why a worker of the group stopped by itself; None while all run."""
        self._report = report
        self._seconds_to_stop = seconds_to_stop
        self._has_failed = asyncio.Event()
        self.monitors: Sequence[PollMonitor] = ()
        """The monitors of the workers' polls."""
        self._block: asyncio.Task[object] | None = None
        self._cancelled_block = False
        self._stopping = False

    @property
    def unready(self) -> str:
        """Why the group serves nothing, or not everything that it should; "" while it serves."""
        if self.failure is not None:
            return str(self.failure)
        if self._stopping:
            return "draining"
        return "; ".join(monitor.reason for monitor in self.monitors if monitor.reason)

    async def until_failed(self) -> WorkerStoppedError:
        """Wait until a worker has failed, and return the failure."""
        await self._has_failed.wait()
        assert self.failure is not None
        return self.failure

    def on_fatal_error(self, task_queue: str) -> Callable[[BaseException], Awaitable[None]]:
        """The function that a worker calls when it must stop, before it drains."""

        async def record_error(error: BaseException) -> None:
            self._record_failure(task_queue, error)

        return record_error

    @asynccontextmanager
    async def running(self, workers: Sequence[Worker], monitors: Sequence[PollMonitor] = ()) -> AsyncIterator[None]:
        """Run the workers, and watch their polls, while the block runs. If a worker fails, report it and cancel the block.

        Another task than the task that entered the block may leave it. Then the block cannot be cancelled: `failure` is set
        and reported, and raised when the block is left.

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
            # As asyncio.timeout does: another cancellation than our own is passed on.
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
        if not workers:
            return
        # Together, as one after the other they would take the grace time twice.
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
            self._record_failure(worker.task_queue, error)
        else:
            if not self._stopping:
                self._record_failure(worker.task_queue, RuntimeError("it ended, and gave no reason"))

    def _record_failure(self, task_queue: str, error: BaseException) -> None:
        self.fail(f"the worker of task queue {task_queue!r} has stopped: {reason_of(error)}", error)

    def fail(self, reason: str, cause: BaseException | None = None) -> None:
        """Stop the workers: they end their polls at once, what runs may finish, and the block is cancelled."""
        if self.failure is not None:
            # Only the first reason is reported; a second is most often the same error at the end of the drain.
            return
        self.failure = WorkerStoppedError(reason)
        self.failure.__cause__ = cause
        self._has_failed.set()
        self._report(f"error: {self.failure}")
        if self._block is not None and not self._stopping:
            self._cancelled_block = self._block.cancel()


def reason_of(error: BaseException) -> str:
    """The root cause of a worker's end, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error)
    if status := _GRPC_STATUS.search(text):
        # The SDK's text ends in the status as Rust prints it, with its bytes.
        return f"{status[2]} ({status[1]})"
    return text.splitlines()[0] if text else type(error).__name__
