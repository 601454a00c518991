"""Where tools, fixers and policies run: apart from the worker's event loop, under a limit that holds.

An `async def` runs on an event loop of the tools' own, so that one that blocks starves no heartbeat of the worker's. A
`def` gets a thread of its own: threads cannot be killed, and a pool would fill up with hung ones. Who does not come back
in time is left behind, and the caller is told on time all the same.
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

logger = logging.getLogger("mulligan.tools")

START_WITHIN = 1.0
"""Seconds within which a coroutine must have begun: else the loop is blocked by another one, and a new loop is made."""


_NONE: Mapping[str, Any] = {}


class TookTooLong(Exception):
    """It did not come back within its limit, in seconds."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        super().__init__(f"not done within {limit:g} s")


@dataclass(frozen=True)
class _Raised:
    """What the function raised, as a value: some exceptions (StopIteration, SystemExit) do not survive a future."""

    error: BaseException


class ToolRuntime:
    """Runs users' functions. One for a worker."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loops: list[asyncio.AbstractEventLoop] = []
        self._left_behind: set[threading.Thread] = set()

    async def run(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] = _NONE, *, limit: float
    ) -> Any:
        """Call a function, sync or async, and wait for it `limit` seconds at most.

        Raises:
            TookTooLong: it did not come back.
            BaseException: what the function raised, even a SystemExit.
        """
        try:
            if inspect.iscoroutinefunction(function):
                outcome = await self._on_the_loop(function, args, kwargs, limit)
            else:
                end = time.monotonic() + limit
                outcome = await self._in_a_thread(function, args, kwargs, limit)
                if inspect.isawaitable(outcome):
                    outcome = await self._on_the_loop(_awaited, (outcome,), {}, max(0.0, end - time.monotonic()))
        except TimeoutError:
            raise TookTooLong(limit) from None
        if isinstance(outcome, _Raised):
            raise outcome.error
        return outcome

    async def ask(self, function: Callable[..., Any], args: Sequence[Any], *, limit: float) -> Any:
        """As `run`, for fixers and guards: what would end a task or the process is an ordinary error.

        Raises:
            TookTooLong: it did not come back.
            Exception: what it raised.
        """
        try:
            return await self.run(function, args, limit=limit)
        except Exception:
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    async def enter(self, make: Callable[[], Any], *, limit: float) -> tuple[Any, Callable[[float], Awaitable[None]]]:
        """Enter an async context manager on the tools' loop; returns what it gave, and how it is left again.

        One task enters and leaves it, as many libraries ask for. A loop that is blocked by an `async def` tool is
        replaced for other tools; what was entered stays on its own.

        Raises:
            TookTooLong: it was not entered in time.
            Exception: what it raised.
        """
        entered: Future[Any] = Future()
        loop = self._loop or self._new_loop()
        leave = asyncio.Event()
        held = asyncio.run_coroutine_threadsafe(_hold(make, entered, leave), loop)

        async def left(limit: float) -> None:
            loop.call_soon_threadsafe(leave.set)
            async with asyncio.timeout(limit):
                await asyncio.wrap_future(held)

        try:
            async with asyncio.timeout(limit):
                return await asyncio.wrap_future(entered), left
        except TimeoutError:
            held.cancel()
            raise TookTooLong(limit) from None

    async def _in_a_thread(self, function: Callable[..., Any], args: Any, kwargs: Any, limit: float) -> Any:
        future: Future[Any] = Future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                outcome = context.run(function, *args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - whatever a tool raises is an outcome
                outcome = _Raised(error)
            with suppress(InvalidStateError):  # nobody waits for it any more
                future.set_result(outcome)

        name = getattr(function, "__name__", "tool")
        # A daemon: a hung tool must not keep the worker's process from ending.
        thread = threading.Thread(target=work, name=f"tool {name}", daemon=True)
        thread.start()
        try:
            async with asyncio.timeout(limit):
                return await asyncio.wrap_future(future)
        except (TimeoutError, asyncio.CancelledError):
            self._leave_behind(thread)
            raise

    async def _on_the_loop(self, function: Callable[..., Awaitable[Any]], args: Any, kwargs: Any, limit: float) -> Any:
        """The limit counts from when the coroutine begins: what another one blocks is not its fault."""
        while True:
            loop = self._loop or self._new_loop()
            work = _Work(function, args, kwargs)
            future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work.run(), loop))
            try:
                # Most are done by then. A loop that says when each begins would have to wake this one, each time.
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
        """Stop the tools' event loops, the blocked ones too when they come back. Threads end with the process."""
        for loop in self._loops:
            if not loop.is_closed():
                loop.call_soon_threadsafe(loop.stop)
        self._loop = None
        self._loops.clear()

    def _leave_behind(self, thread: threading.Thread) -> None:
        self._left_behind = {old for old in self._left_behind if old.is_alive()} | {thread}
        logger.warning(
            "%s was given up but its thread still runs; %d such threads in this worker.",
            thread.name,
            len(self._left_behind),
        )


class _Work:
    """A coroutine function to be called on the tools' loop; whoever takes the claim first decides whether it is."""

    def __init__(self, function: Callable[..., Awaitable[Any]], args: Any, kwargs: Any) -> None:
        self._function, self._args, self._kwargs = function, args, kwargs
        self.claim = threading.Lock()
        self.began = 0.0
        """In seconds of the loops' clock, which is one."""

    async def run(self) -> Any:
        self.began = asyncio.get_running_loop().time()
        if not self.claim.acquire(blocking=False):
            return None  # given to another loop while this one was blocked
        try:
            return await self._function(*self._args, **self._kwargs)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return _Raised(error)  # the tool's own doing, not ours
        except BaseException as error:  # noqa: BLE001 - whatever a tool raises is an outcome
            return _Raised(error)


async def _hold(make: Callable[[], Any], entered: Future[Any], leave: asyncio.Event) -> None:
    try:
        async with make() as value:
            entered.set_result(value)
            await leave.wait()
    except BaseException as error:
        if entered.done():
            raise
        entered.set_exception(
            error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
        )


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


async def _cancel_all() -> None:
    """Cancel what still runs, and wait for it: who ignores that is waited for by a daemon thread alone."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
