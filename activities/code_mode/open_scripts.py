"""The scripts of one worker: those that run, in threads, and those that wait for calls, in its memory."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from mulligan.activities.code_mode.script_queue import ScriptQueue
from mulligan.activities.code_mode.script_session import ScriptSession
from mulligan.wire.code_mode import ScriptFacts

Key = tuple[str, ...]
"""The ids of a workflow and of its run, the number of an agent, the id of a call. A reset gives the run another id."""
T = TypeVar("T")
RUNNING, KEPT = 8, 32
"""How many scripts run at once, and how many wait in memory: each has two processes, of 20 MB together. Others are run
again."""
KEPT_BYTES = 1_000_000_000
"""Memory of all that wait. One of them may hold 256 MB."""
IDLE_SECONDS = 600.0
"""After so long a script that waits, for a person perhaps, leaves the memory."""


class OpenScripts:
    """The scripts of one worker that wait for calls. Those that wait for the longest time leave first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, tuple[ScriptSession, ScriptFacts]] = OrderedDict()
        self._threads = ThreadPoolExecutor(RUNNING, thread_name_prefix="script")
        self._queue = ScriptQueue(RUNNING)

    def place(self, key: Key) -> AbstractAsyncContextManager[None]:
        """Wait until the script may run, and let it run for the time of the block."""
        return self._queue.place(key[:2])

    async def run(self, session: ScriptSession, part: Callable[[], T]) -> T:
        """Run a part of a script in a thread. If this is cancelled, or fails, the session is closed."""
        try:
            return await self.in_thread(part)
        except BaseException:
            session.close()
            raise

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call a function in one of the threads of scripts."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def take(self, key: Key, delivered: int, asked: int) -> ScriptSession | None:
        """Take out a script that has made `asked` calls and has `delivered` results of them; None if it is not here."""
        session, _ = self._kept.pop(key, (None, None))
        if session is not None and (len(session.delivered) != delivered or len(session.calls) < asked):
            session.close()
            return None
        return session

    def facts(self, key: Key) -> ScriptFacts | None:
        """What stays the same for all parts of a script; None if it is not here."""
        return self._kept[key][1] if key in self._kept else None

    def keep(self, key: Key, session: ScriptSession, facts: ScriptFacts) -> None:
        """Keep a script until it is taken out, or others need its place."""
        self._kept[key] = session, facts
        while len(self._kept) > KEPT or sum(each.memory for each, _ in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)[1][0].close()
        asyncio.get_running_loop().call_later(IDLE_SECONDS, self._forget, key, session)

    def _forget(self, key: Key, session: ScriptSession) -> None:
        if key in self._kept and self._kept[key][0] is session:
            del self._kept[key]
            session.close()
