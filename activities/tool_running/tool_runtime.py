"""Run the functions of users (tools, fixers, policies) outside of the worker's event loop, with a time limit.

An `async def` runs on a separate event loop, so a blocking one delays no heartbeat of the worker. A `def` runs in a thread
of its own: threads cannot be killed, and a pool would fill up with hung ones. A function that exceeds its limit is
abandoned, and the caller continues on time. `ThreadBounds` limits the threads of such functions.

A loop is seen to be blocked when a call does not start on it in time, or when a call is still at work on it at its limit.
The next callback that a blocked loop runs says that it is not blocked any more. So no timer is needed.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from temporalio import activity

from mulligan.activities.tool_running.thread_bounds import THREADS, ThreadBounds, ThreadUse, TookTooLong, TooManyThreads
from mulligan.activities.tool_running.tool_loop import ToolLoop
from mulligan.schema.error_text import error_text, type_name
from mulligan.schema.exception_group import single_cause

logger = logging.getLogger("mulligan.tools")

START_WITHIN = 1.0
"""Seconds within which a coroutine must start. Otherwise another one blocks the loop, and a new loop is created."""

_NONE: Mapping[str, Any] = {}
_Read = Callable[[Any], Any]


@dataclass(frozen=True)
class _Raised:
    """The exception of a function, as a value: a future cannot carry some exceptions (StopIteration, SystemExit).

    It is made where the function ran. Its text is read there, as that may take as long as the function itself. A group
    of one counts as what is in it, whoever made the group.
    """

    error: BaseException

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", single_cause(self.error))
        error_text(self.error)


class ToolRuntime:
    """Runs users' functions. A worker has one."""

    def __init__(self, change_hung: Callable[[int], None] | None = None, threads: int = THREADS) -> None:
        """`change_hung` is called with each change of the number of hung threads. `threads`: as `THREADS`."""
        self.bounds = ThreadBounds(threads, change_hung)
        self._loops: list[ToolLoop] = []

    async def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] = _NONE,
        *,
        limit: float,
        read: _Read | None = None,
        of: object = None,
    ) -> Any:
        """Call a function, sync or async, and wait for it `limit` seconds at most.

        Args:
            function: The function.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            limit: Seconds, for the function and `read` together.
            read: Makes plain data of the function's value, where the function ran: an object of a user's class may do
                anything when it is read.
            of: An object whose calls count together, for the threads that they may use; `function` if None.

        Raises:
            TookTooLong: the function did not end in time.
            TooManyThreads: it was not called, as too many calls of its run, or of it, hang.
            BaseException: the exception of the function, even a SystemExit.
        """
        run = (activity.info().workflow_id or "") if activity.in_activity() else ""
        use = ThreadUse(run, function if of is None else of, getattr(function, "__name__", "tool"))
        work = _Work(function, args, kwargs, read)
        try:
            if inspect.iscoroutinefunction(function):
                outcome = await self._on_a_loop(work, use, limit)
            else:
                end = time.monotonic() + limit
                outcome = await self._in_a_thread(work, use, limit)
                if inspect.isawaitable(outcome):
                    work = _Work(_awaited, (outcome,), {}, read)
                    try:
                        outcome = await self._on_a_loop(work, use, max(0.0, end - time.monotonic()))
                    except TooManyThreads:
                        raise TookTooLong(limit) from None  # its first part was run
        except TimeoutError:
            raise TookTooLong(limit) from None
        if isinstance(outcome, _Raised):
            raise outcome.error
        return outcome

    async def ask(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        *,
        limit: float,
        read: _Read | None = None,
        of: object = None,
    ) -> Any:
        """Run a fixer or a guard: an exception that would end the task or the process becomes a RuntimeError.

        Raises:
            TookTooLong: the function did not end in time.
            Exception: the exception of the function.
        """
        try:
            return await self.run(function, args, limit=limit, read=read, of=of)
        except Exception:
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            raise RuntimeError(f"{type_name(error)}: {error_text(error)}") from error

    async def enter(self, make: Callable[[], Any], *, limit: float) -> tuple[Any, Callable[[float], Awaitable[None]]]:
        """Enter an async context manager on the tools' loop; returns its value, and the function that leaves it.

        One task enters and leaves it, as many libraries require. If an `async def` tool blocks the loop, other tools get a
        new loop, but the context manager stays on this one.

        Raises:
            TookTooLong: it was not entered in time.
            Exception: its exception.
        """
        entered: Future[Any] = Future()
        loop = self._loop_for("").loop
        leave = asyncio.Event()
        task = asyncio.run_coroutine_threadsafe(_enter_and_leave(make, entered, leave), loop)

        async def leave_within(limit: float) -> None:
            loop.call_soon_threadsafe(leave.set)
            async with asyncio.timeout(limit):
                await asyncio.wrap_future(task)

        try:
            async with asyncio.timeout(limit):
                return await asyncio.wrap_future(entered), leave_within
        except TimeoutError:
            task.cancel()
            raise TookTooLong(limit) from None

    async def _in_a_thread(self, work: _Work, use: ThreadUse, limit: float) -> Any:
        await self.bounds.check_room(use, limit)
        home, context = asyncio.get_running_loop(), contextvars.copy_context()
        ended: asyncio.Future[Any] = home.create_future()

        def end(outcome: Any) -> None:
            at_limit.cancel()
            self.bounds.free(use)
            if not ended.done():  # the caller may have given it up
                ended.set_result(outcome)

        def turn() -> None:
            outcome = context.run(work.call)
            with suppress(RuntimeError):  # the worker's loop has ended
                home.call_soon_threadsafe(end, outcome)

        # A daemon, so that a hung tool does not prevent the end of the process.
        threading.Thread(target=turn, name=f"tool {use.name}", daemon=True).start()
        # A caller that is cancelled does not wait, but the function still has its time.
        at_limit = home.call_later(limit, self._abandon, use, ended)
        return await ended

    def _abandon(self, use: ThreadUse, ended: asyncio.Future[Any]) -> None:
        """Count the thread of a function that has exceeded its limit as hung, and let its caller continue."""
        self.bounds.hang(use)
        logger.warning(
            "tool %s was abandoned, but its thread still runs; this worker has %d such threads.",
            use.name,
            self.bounds.hung,
        )
        if not ended.done():
            ended.set_exception(TimeoutError())

    async def _on_a_loop(self, work: _Work, use: ThreadUse, limit: float) -> Any:
        """Run a coroutine function. Its limit counts from its start, as another coroutine may block the loop before."""
        use = replace(use, is_loop=True)
        while True:
            await self.bounds.check_room(use, limit)
            work, tool_loop = work.copy(), self._loop_for(use.run)
            future = asyncio.wrap_future(tool_loop.submit(work.run(), use))
            try:
                # Most end within this time. A signal at the start of each would wake this loop each time.
                await asyncio.wait([future], timeout=min(limit, START_WITHIN))
                if limit < START_WITHIN and not work.began:
                    await asyncio.wait([future], timeout=START_WITHIN - limit)
                if not future.done() and work.claim.acquire(blocking=False):
                    self._notice_block(tool_loop)
                    continue
                async with asyncio.timeout_at(work.began + limit):
                    return await future
            except TimeoutError:
                if tool_loop.running is use:
                    self._notice_block(tool_loop)
                raise
            finally:
                future.cancel()

    def _loop_for(self, run: str) -> ToolLoop:
        """A loop that is not blocked, the first where possible, as resources were opened on it.

        A run whose functions block loops gets another one than all others: they must not wait for each of its functions.
        """
        reserved_for = run if self.bounds.blocks(run) else ""
        for each in self._loops:
            if not each.is_blocked and each.reserved_for == reserved_for:
                return each
        self._loops.append(ToolLoop(reserved_for))
        return self._loops[-1]

    def _notice_block(self, tool_loop: ToolLoop) -> None:
        """Count the thread of a blocked loop as hung, until the loop runs again."""
        if tool_loop.is_blocked:
            return
        tool_loop.is_blocked = True
        home, use = asyncio.get_running_loop(), tool_loop.running or ThreadUse("", None, "unknown", is_loop=True)
        self.bounds.hang(use)
        logger.warning(
            "The tools' event loop is blocked by the `async def` function %s; another one takes over. This worker has %d "
            "threads of functions that hang.",
            use.name,
            self.bounds.hung,
        )

        def end_block() -> None:
            tool_loop.is_blocked = False
            self.bounds.free(use)
            if not self.bounds.blocks(use.run):
                for each in self._loops:
                    each.reserved_for = "" if each.reserved_for == use.run else each.reserved_for

        def run_again() -> None:
            with suppress(RuntimeError):  # the worker's loop has ended
                home.call_soon_threadsafe(end_block)

        tool_loop.loop.call_soon_threadsafe(run_again)

    def close(self) -> None:
        """Stop the tools' event loops; a blocked one stops when its tool ends. Threads end with the process."""
        for each in self._loops:
            each.stop()
        self._loops.clear()


class _Work:
    """A function that shall be called, once: on a tools' loop only if the caller does not take `claim` first."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any, read: _Read | None) -> None:
        self._function, self._args, self._kwargs, self._read = function, args, kwargs, read
        self.claim = threading.Lock()
        self.began = 0.0
        """When it started on a loop, by the clock that all loops share, in seconds."""

    def copy(self) -> _Work:
        """Copy the work, so that another loop can run it."""
        return _Work(self._function, self._args, self._kwargs, self._read)

    def call(self) -> Any:
        """The value, an awaitable that is the value, or a `_Raised`."""
        try:
            value = self._function(*self._args, **self._kwargs)
            return value if self._read is None or inspect.isawaitable(value) else self._read(value)
        except BaseException as error:  # noqa: BLE001 - any exception of a tool is an outcome
            return _Raised(error)

    async def run(self) -> Any:
        """The value, or a `_Raised`."""
        self.began = asyncio.get_running_loop().time()
        if not self.claim.acquire(blocking=False):
            return None  # another loop runs it, as this one was blocked
        try:
            value = await self._function(*self._args, **self._kwargs)
            return value if self._read is None else self._read(value)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return _Raised(error)  # the tool cancelled itself
        except BaseException as error:  # noqa: BLE001 - any exception of a tool is an outcome
            return _Raised(error)


async def _enter_and_leave(make: Callable[[], Any], entered: Future[Any], leave: asyncio.Event) -> None:
    try:
        async with make() as value:
            entered.set_result(value)
            await leave.wait()
    except BaseException as raised:
        if entered.done():
            raise
        error = single_cause(raised)
        entered.set_exception(
            error if isinstance(error, Exception) else RuntimeError(f"{type_name(error)}: {error_text(error)}")
        )


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
