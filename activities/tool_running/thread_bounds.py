"""Bounds for the threads of hung calls: of one run, of one function, and of a worker.

A thread cannot be ended from outside: a function that still runs after its time limit keeps its thread, and an `async def`
that blocks keeps that of its event loop. One run, or one function, must not take all threads from the functions of others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from temporalio import activity

THREADS = 128
"""A worker with this many hung threads ends. Each takes memory, and a share of the interpreter if it computes; only the end
of the process ends it. Threads of functions that end in time are not limited, except by the slots for activities."""
SHARE_OF_RUN, SHARE_OF_FUNCTION = 4, 2
"""The calls of one run may hang in a quarter of this number, and those of one function in half of it."""
SECONDS_TO_REFUSE = 3.0
"""A call that may use no thread is refused after this time, or after its limit if that is shorter: a refusal at once would
draw more such calls to this worker. It is not started when a thread ends meanwhile: the timeout of its activity might not
allow its whole limit any more."""


class TookTooLong(Exception):
    """The function did not end within its limit, in seconds."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        super().__init__(f"not done within {limit:g} s")


class TooManyThreads(TookTooLong):
    """The function was not called. The text continues a sentence that names it."""

    def __init__(self, limit: float, users: str) -> None:
        super().__init__(limit)
        self.args = (f"was not run, as {users} still run on this worker. Continue without it, or try it again later.",)


@dataclass(eq=False)
class ThreadUse:
    """A thread that a call uses, or that it would use."""

    run: str
    """The workflow id of the run; "" outside of activities."""
    function: object
    """The function, or what stands for it. Calls of the same object count together."""
    name: str
    is_loop: bool = False
    """Whether it is the thread of an event loop that the call blocks. These are counted apart: a coroutine that does not
    block needs no thread, whatever other functions of its run do."""


class ThreadBounds:
    """The threads of hung calls on one worker. Use from one event loop."""

    def __init__(self, threads: int = THREADS, change_hung: Callable[[int], None] | None = None) -> None:
        """`threads`: as `THREADS`. `change_hung`: called with each change of the number of hung threads."""
        self.on_used_up: Callable[[str], None] = lambda _: None
        """Called once, with the reason, when so many threads hang that the worker should end."""
        self._threads = threads
        self._of_run, self._of_function = max(1, threads // SHARE_OF_RUN), max(1, threads // SHARE_OF_FUNCTION)
        self._change_hung = change_hung
        self._hung: set[ThreadUse] = set()
        self._is_used_up = False

    @property
    def hung(self) -> int:
        """The number of threads that hung calls use."""
        return len(self._hung)

    async def check_room(self, use: ThreadUse, limit: float) -> None:
        """Check that the run and the function may use one more thread. `limit`: of the call, in seconds.

        Raises:
            TooManyThreads: too many of their calls hang; after `SECONDS_TO_REFUSE`.
        """
        if users := self._users(use):
            await asyncio.sleep(min(limit, SECONDS_TO_REFUSE))
            raise TooManyThreads(limit, users)

    def hang(self, use: ThreadUse) -> None:
        """Count a thread, as its call has exceeded its limit or blocks an event loop. A worker that stops says nothing."""
        self._hung.add(use)
        self._report_change(1)
        is_stopping = activity.in_activity() and activity.is_worker_shutdown()
        if self._counted() >= self._threads and not self._is_used_up and not is_stopping:
            self._is_used_up = True
            names = Counter(each.name for each in self._hung).most_common(5)
            self.on_used_up(
                f"no threads left: {self.hung} functions did not end within their time limits, and still run ("
                + ", ".join(f"{name}: {count}" for name, count in names)
                + ")"
            )

    def free(self, use: ThreadUse) -> None:
        """Count a thread no longer, if it was counted."""
        if use in self._hung:
            self._hung.remove(use)
            self._report_change(-1)

    def blocks(self, run: str) -> bool:
        """Whether functions of a run block event loops at present."""
        return any(each.is_loop and each.run == run for each in self._hung)

    def _counted(self) -> int:
        """The number of hung threads, with no more than the share of each run and of each function.

        More calls than a share may have run when the first of them exceeded its limit.
        """
        of_runs = Counter((each.run, each.is_loop) for each in self._hung)
        of_functions = Counter((id(each.function), each.is_loop) for each in self._hung)
        return min(
            sum(min(count, self._of_run) for count in of_runs.values()),
            sum(min(count, self._of_function) for count in of_functions.values()),
        )

    def _users(self, use: ThreadUse) -> str:
        """The hung calls that have used up the share of a run or a function, in words; "" if there is room."""
        alike = [each for each in self._hung if each.is_loop == use.is_loop]
        if (count := sum(each.run == use.run for each in alike)) >= self._of_run:
            return f"{count} calls of this run that did not end in time"
        if (count := sum(each.function is use.function for each in alike)) >= self._of_function:
            return f"{count} calls of it that did not end in time"
        return ""

    def _report_change(self, change: int) -> None:
        if self._change_hung is not None:
            self._change_hung(change)
