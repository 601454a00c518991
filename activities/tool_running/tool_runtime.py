"""Run the functions of users (tools, fixers, policies) outside of the worker's event loop, with a time limit.

An `async def` runs on a separate event loop, so a blocking one delays no heartbeat of the worker. A `def` runs in a thread
of its own: threads cannot be killed, and a pool would fill up with hung ones. A function that exceeds its limit is
abandoned, and the caller continues on time.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mulligan.schema.error_text import error_text, type_name

logger = logging.getLogger("mulligan.tools")

START_WITHIN = 1.0
"""Seconds within which a coroutine must start. Otherwise another one blocks the loop, and a new loop is created."""
MAX_ABANDONED = 64
"""Threads that may be left behind by functions that exceeded their limits; then no new thread is started. Each takes memory
and a share of the interpreter for as long as it runs, and only the end of the process ends it."""

_NONE: Mapping[str, Any] = {}
_Read = Callable[[Any], Any]


class TookTooLong(Exception):
    """The function did not end within its limit, in seconds."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        super().__init__(f"not done within {limit:g} s")


class TooManyThreads(Exception):
    """The function was not called, as too many others have not ended. The message continues a sentence that names it."""

    def __init__(self, count: int) -> None:
        super().__init__(
            f"was not run: {count} functions on this worker did not end within their limits, and still run. "
            "Continue without it, or try it again later."
        )


@dataclass(frozen=True)
class _Raised:
    """The exception of a function, as a value: a future cannot carry some exceptions (StopIteration, SystemExit).

    It is made where the function ran. Its text is read there, as that may take as long as the function itself.
    """

    error: BaseException

    def __post_init__(self) -> None:
        error_text(self.error)


class ToolRuntime:
    """Runs users' functions. A worker has one."""

    def __init__(self, change_abandoned: Callable[[int], None] | None = None) -> None:
        """`change_abandoned` is called with each change of the number of threads that are left behind."""
        self._change_abandoned = change_abandoned
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loops: list[asyncio.AbstractEventLoop] = []
        self._abandoned: set[threading.Thread] = set()
        self._lock = threading.Lock()

    async def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] = _NONE,
        *,
        limit: float,
        read: _Read | None = None,
    ) -> Any:
        """Call a function, sync or async, and wait for it `limit` seconds at most.

        Args:
            function: The function.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            limit: Seconds, for the function and `read` together.
            read: Makes plain data of the function's value, where the function ran: an object of a user's class may do
                anything when it is read.

        Raises:
            TookTooLong: the function did not end in time.
            TooManyThreads: it is not a coroutine function, and `MAX_ABANDONED` threads are left behind.
            BaseException: the exception of the function, even a SystemExit.
        """
        try:
            if inspect.iscoroutinefunction(function):
                outcome = await self._on_the_loop(function, args, kwargs, limit, read)
            else:
                end = time.monotonic() + limit
                outcome = await self._in_a_thread(function, args, kwargs, limit, read)
                if inspect.isawaitable(outcome):
                    left = max(0.0, end - time.monotonic())
                    outcome = await self._on_the_loop(_awaited, (outcome,), {}, left, read)
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
    ) -> Any:
        """As `run`, for fixers and guards: an exception that would end the task or the process becomes a RuntimeError.

        Raises:
            TookTooLong: the function did not end in time.
            Exception: the exception of the function.
        """
        try:
            return await self.run(function, args, limit=limit, read=read)
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
        loop = self._loop or self._new_loop()
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

    async def _in_a_thread(
        self, function: Callable[..., Any], args: Any, kwargs: Any, limit: float, read: _Read | None
    ) -> Any:
        self._update_abandoned()
        if len(self._abandoned) >= MAX_ABANDONED:
            raise TooManyThreads(len(self._abandoned))
        future: Future[Any] = Future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                outcome = context.run(function, *args, **kwargs)
                if read is not None and not inspect.isawaitable(outcome):
                    outcome = context.run(read, outcome)
            except BaseException as error:  # noqa: BLE001 - any exception of a tool is an outcome
                outcome = _Raised(error)
            with suppress(InvalidStateError):  # the caller has given it up
                future.set_result(outcome)
            if thread in self._abandoned:
                self._update_abandoned(ended=thread)

        name = getattr(function, "__name__", "tool")
        # A daemon, so that a hung tool does not prevent the end of the process.
        thread = threading.Thread(target=work, name=f"tool {name}", daemon=True)
        thread.start()
        try:
            async with asyncio.timeout(limit):
                return await asyncio.wrap_future(future)
        except (TimeoutError, asyncio.CancelledError):
            self._abandon(thread)
            raise

    async def _on_the_loop(
        self, function: Callable[..., Awaitable[Any]], args: Any, kwargs: Any, limit: float, read: _Read | None
    ) -> Any:
        """Run a coroutine function. Its limit counts from its start, as another coroutine may block the loop before."""
        while True:
            loop = self._loop or self._new_loop()
            work = _Work(function, args, kwargs, read)
            future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work.run(), loop))
            try:
                # Most end within this time. A signal at the start of each would wake this loop each time.
                await asyncio.wait([future], timeout=min(limit, START_WITHIN))
                if limit < START_WITHIN and not work.began:
                    await asyncio.wait([future], timeout=START_WITHIN - limit)
            except asyncio.CancelledError:
                future.cancel()
                raise
            if not future.done() and work.claim.acquire(blocking=False):
                logger.warning("The tools' event loop is blocked by an `async def` tool; a new one takes over.")
                if self._loop is loop:
                    self._loop = None
                continue
            async with asyncio.timeout_at(work.began + limit):
                return await future

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop = asyncio.new_event_loop()
        self._loops.append(loop)

        def turn() -> None:
            try:
                loop.run_forever()
                loop.run_until_complete(_cancel_all())
            finally:
                loop.close()

        threading.Thread(target=turn, name="tools' event loop", daemon=True).start()
        return loop

    def close(self) -> None:
        """Stop the tools' event loops; a blocked one stops when its tool ends. Threads end with the process."""
        for loop in self._loops:
            if not loop.is_closed():
                loop.call_soon_threadsafe(loop.stop)
        self._loop = None
        self._loops.clear()

    def _abandon(self, thread: threading.Thread) -> None:
        self._update_abandoned(added=thread)
        logger.warning(
            "%s was abandoned, but its thread still runs; this worker has %d such threads.",
            thread.name,
            len(self._abandoned),
        )

    def _update_abandoned(
        self, *, added: threading.Thread | None = None, ended: threading.Thread | None = None
    ) -> None:
        """Count the threads that are left behind and still run."""
        with self._lock:
            running = {each for each in {*self._abandoned, added} if each and each.is_alive() and each is not ended}
            change = len(running) - len(self._abandoned)
            self._abandoned = running
        if change and self._change_abandoned is not None:
            self._change_abandoned(change)


class _Work:
    """A coroutine function that shall run on the tools' loop, unless the caller takes `claim` first."""

    def __init__(self, function: Callable[..., Awaitable[Any]], args: Any, kwargs: Any, read: _Read | None) -> None:
        self._function, self._args, self._kwargs, self._read = function, args, kwargs, read
        self.claim = threading.Lock()
        self.began = 0.0
        """When it started, by the clock that all loops share, in seconds."""

    async def run(self) -> Any:
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
    except BaseException as error:
        if entered.done():
            raise
        entered.set_exception(
            error if isinstance(error, Exception) else RuntimeError(f"{type_name(error)}: {error_text(error)}")
        )


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def _cancel_all() -> None:
    """Cancel all tasks, and wait for them. Only this daemon thread waits for a task that ignores its cancellation."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
