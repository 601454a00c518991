"""An event loop for users' coroutine functions, which knows the call whose code runs on it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any
from weakref import WeakKeyDictionary

from mulligan.activities.tool_running.thread_bounds import ThreadUse

_use: contextvars.ContextVar[ThreadUse | None] = contextvars.ContextVar("mulligan_thread_use", default=None)
"""The call for which code runs. Tasks that a function starts inherit it."""


class ToolLoop:
    """An event loop in a thread of its own."""

    def __init__(self, reserved_for: str) -> None:
        """`reserved_for`: the run whose functions alone use the loop; "" if all do."""
        self.reserved_for = reserved_for
        self.is_blocked = False
        """Whether a function on it was seen to block it, and it has not run anything else since."""
        self.loop = asyncio.new_event_loop()
        self._uses: WeakKeyDictionary[asyncio.Task[Any], ThreadUse | None] = WeakKeyDictionary()
        self.loop.set_task_factory(self._create_task)
        # A daemon, so that a hung tool does not prevent the end of the process.
        threading.Thread(target=self._turn, name="tools' event loop", daemon=True).start()

    def submit(self, coroutine: Coroutine[Any, Any, Any], use: ThreadUse) -> Future[Any]:
        """Run a coroutine for a call, in a copy of the current context."""
        context = contextvars.copy_context()
        context.run(_use.set, use)
        return context.run(asyncio.run_coroutine_threadsafe, coroutine, self.loop)

    @property
    def running(self) -> ThreadUse | None:
        """The call whose code runs at this moment; None if that is unknown, or none runs. From any thread."""
        task = asyncio.current_task(self.loop)
        return None if task is None else self._uses.get(task)

    def stop(self) -> None:
        """Stop the loop; a blocked one stops when its function ends."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _create_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        self._uses[task] = _use.get()
        return task

    def _turn(self) -> None:
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(_cancel_all())
        finally:
            self.loop.close()


async def _cancel_all() -> None:
    """Cancel all tasks, and wait for them. Only this daemon thread waits for a task that ignores its cancellation."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
