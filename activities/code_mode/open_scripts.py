"""The scripts that wait for calls, in this worker's memory, and the processes of all scripts."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import pydantic_monty as monty

from mulligan.activities.code_mode.script_session import ScriptSession
from mulligan.wire.code_mode import ScriptFacts

Key = tuple[str, ...]
"""The ids of a workflow and of its run, the number of an agent, the id of a call. A reset gives the run another id."""
T = TypeVar("T")
RUNNING, KEPT = 8, 32
"""How many scripts run at once, and how many wait in memory: each has a process of about 10 MB. Others are run again."""
IDLE_SECONDS = 600.0
"""After so long a script that waits, for a person perhaps, leaves the memory."""


@cache
def _pool() -> monty.Monty:
    """The interpreters of this process. They end with it."""
    pool = monty.Monty(min_processes=0, max_processes=4 * (RUNNING + KEPT))
    pool.__enter__()
    return pool


class OpenScripts:
    """The scripts of one worker that wait for calls. Those that wait for the longest time leave first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, tuple[ScriptSession, ScriptFacts]] = OrderedDict()
        self._threads = ThreadPoolExecutor(RUNNING, thread_name_prefix="script")

    async def open(self, open_session: Callable[[monty.Monty], ScriptSession]) -> ScriptSession:
        """A new session, opened by the function in a thread."""
        return await self.in_thread(lambda: open_session(_pool()))

    async def run(self, session: ScriptSession, part: Callable[[], T]) -> T:
        """Run a part of a script in a thread. If this is cancelled, or fails, the session is closed."""
        try:
            return await self.in_thread(part)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                session.kill()
            self._threads.submit(session.close)
            raise

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call a function in one of the threads of scripts."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def take(self, key: Key, delivered: int, asked: int) -> ScriptSession | None:
        """Take out a script that has made `asked` calls and has `delivered` results of them; None if it is not here."""
        session, _ = self._kept.pop(key, (None, None))
        if session is not None and (len(session.delivered) != delivered or len(session.calls) < asked):
            self._threads.submit(session.close)
            return None
        return session

    def facts(self, key: Key) -> ScriptFacts | None:
        """What stays the same for all parts of a script; None if it is not here."""
        return self._kept[key][1] if key in self._kept else None

    def keep(self, key: Key, session: ScriptSession, facts: ScriptFacts) -> None:
        """Keep a script until it is taken out, or others need its place."""
        self._kept[key] = session, facts
        while len(self._kept) > KEPT:
            self._threads.submit(self._kept.popitem(last=False)[1][0].close)
        asyncio.get_running_loop().call_later(IDLE_SECONDS, self._forget, key, session)

    def close(self, session: ScriptSession) -> None:
        """Close a script that has ended."""
        self._threads.submit(session.close)

    def _forget(self, key: Key, session: ScriptSession) -> None:
        if key in self._kept and self._kept[key][0] is session:
            del self._kept[key]
            self._threads.submit(session.close)
