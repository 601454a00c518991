"""How many of a worker's threads one run and one function may use, and when the worker has none left.

A thread cannot be ended from outside: a function that still runs after its time limit keeps its thread, and an `async def`
that blocks keeps that of its event loop. One run, or one function, must not take all threads from the functions of others.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["ThreadBounds", "ThreadUse", "TooManyThreads", "TookTooLong"]

THREADS = 128
"""With so many hung threads a worker has none left. Each takes memory, and a share of the interpreter if it computes; only
the end of the process ends it. Threads of functions that end in time are not limited, except by the slots for activities."""
SHARE_OF_RUN, SHARE_OF_FUNCTION = 4, 2
"""One run may use a quarter of this number, and one function may hang in half of it."""


class TookTooLong(Exception):
    """The function did not end within its limit, in seconds."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        super().__init__(f"not done within {limit:g} s")


class TooManyThreads(TookTooLong):
    """The function got no thread within its limit, and was not called. The text continues a sentence that names it."""

    def __init__(self, limit: float, users: str) -> None:
        super().__init__(limit)
        self.args = (
            f"was not run: it waited {limit:g} s for a thread, as {users} still run on this worker. Continue without it, "
            "or try it again later.",
        )


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
    is_hung: bool = False
    """Whether the call has exceeded its limit, or blocks an event loop."""


class ThreadBounds:
    """The threads in use on one worker. Use from one event loop."""

    def __init__(self, threads: int = THREADS, change_hung: Callable[[int], None] | None = None) -> None:
        """`threads`: as `THREADS`. `change_hung`: called with each change of the number of hung threads."""
        self.on_used_up: Callable[[str], None] = lambda _: None
        """Called once with the reason, when no thread is left."""
        self._threads = threads
        self._of_run, self._of_function = max(1, threads // SHARE_OF_RUN), max(1, threads // SHARE_OF_FUNCTION)
        self._change_hung = change_hung
        self._uses: set[ThreadUse] = set()
        self._freed = asyncio.Event()
        self._is_used_up = False

    @property
    def hung(self) -> int:
        """The number of threads that hung calls use."""
        return sum(use.is_hung for use in self._uses)

    async def wait_for_room(self, use: ThreadUse, limit: float) -> float:
        """Wait until the run and the function may use one more thread; returns the seconds of `limit` that are left.

        Raises:
            TooManyThreads: that was not so within `limit` seconds.
        """
        users, end = self._users(use), time.monotonic() + limit
        if not users:
            return limit
        while users:
            left = end - time.monotonic()
            if left <= 0:
                raise TooManyThreads(limit, users)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._freed.wait(), left)
            users = self._users(use)
        return max(0.0, end - time.monotonic())

    def take(self, use: ThreadUse) -> None:
        """Count a thread from now on."""
        self._uses.add(use)

    def hang(self, use: ThreadUse) -> None:
        """Count a thread as one that hangs. If none is left now, say so."""
        use.is_hung = True
        self._report_change(1)
        # More calls of one function than its share may have run when the first of them exceeded its limit.
        of_functions = Counter(id(each.function) for each in self._uses if each.is_hung)
        counted = sum(min(count, self._of_function) for count in of_functions.values())
        if counted >= self._threads and not self._is_used_up:
            self._is_used_up = True
            names = Counter(each.name for each in self._uses if each.is_hung).most_common(5)
            self.on_used_up(
                f"no threads left: {self.hung} functions did not end within their time limits, and still run ("
                + ", ".join(f"{name}: {count}" for name, count in names)
                + ")"
            )

    def free(self, use: ThreadUse) -> None:
        """Count a thread no longer."""
        self._uses.discard(use)
        if use.is_hung:
            use.is_hung = False
            self._report_change(-1)
        # Each waiter looks again. Those that wait from now on wait for the next one.
        self._freed.set()
        self._freed = asyncio.Event()

    def blocks(self, run: str) -> bool:
        """Whether functions of a run block event loops at present."""
        return any(each.is_loop and each.run == run for each in self._uses)

    def _users(self, use: ThreadUse) -> str:
        """What uses all threads that this one may use as well, in words; "" where there is room."""
        alike = [each for each in self._uses if each.is_loop == use.is_loop]
        if (count := sum(each.run == use.run for each in alike)) >= self._of_run:
            return f"{count} functions that this run has called"
        if (count := sum(each.is_hung and each.function is use.function for each in alike)) >= self._of_function:
            return f"{count} calls of it that did not end in time"
        return ""

    def _report_change(self, change: int) -> None:
        if self._change_hung is not None:
            self._change_hung(change)
