"""How many calls wait for a person, for the navigation of each page."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import replace
from typing import Annotated

from fastapi import Depends
from temporalio.service import RPCError

from mulligan.client.waiting_calls import AllPending
from mulligan.serve.caller import Caller
from mulligan.serve.console.sessions import Session
from mulligan.serve.console.signed_in import Viewing
from mulligan.serve.http_protocol import Serving, kept
from mulligan.serve.problems import Problem
from mulligan.serve.runs import Runs

VALID_SECONDS, PATIENCE_SECONDS = 5.0, 1.0
"""How long a count is used, and how long a page waits for it."""
MOST_CALLERS = 500


class WaitingCounts:
    """The counts of the callers that have asked last. Each is read by one request at a time."""

    def __init__(self) -> None:
        self._known: OrderedDict[Caller, tuple[float, str]] = OrderedDict()
        self._reading: dict[Caller, asyncio.Task[None]] = {}

    async def read(self, runs: Runs, caller: Caller) -> str:
        """The count as a text, such as `2`, or `300+` where not all runs were looked at; empty: none, or not known yet."""
        read_at, text = self._known.get(caller, (0.0, ""))
        if read_at and asyncio.get_running_loop().time() - read_at < VALID_SECONDS:
            return text
        if caller not in self._reading:
            self._reading[caller] = task = asyncio.create_task(self._read(runs, caller))
            task.add_done_callback(lambda _: self._reading.pop(caller, None))
        await asyncio.wait({self._reading[caller]}, timeout=PATIENCE_SECONDS)
        return self._known.get(caller, (0.0, text))[1]

    def note(self, caller: Caller, pending: AllPending) -> str:
        """Note what was read of all runs; returns its count."""
        more = "" if pending.is_complete else "+"
        text = f"{len(pending.calls)}{more}" if pending.calls else ""
        self._known[caller] = asyncio.get_running_loop().time(), text
        self._known.move_to_end(caller)
        while len(self._known) > MOST_CALLERS:
            self._known.popitem(last=False)
        return text

    def forget(self) -> None:
        """Somebody has decided: the counts are read again."""
        self._known.clear()

    async def _read(self, runs: Runs, caller: Caller) -> None:
        try:
            self.note(caller, await runs.all_pending(caller))
        except (Problem, RPCError):
            self._known.pop(caller, None)


Counts = Annotated[WaitingCounts, Depends(kept(WaitingCounts))]


async def _counted(session: Viewing, runs: Serving, counts: Counts) -> Session:
    return replace(session, waiting=await counts.read(runs, session.caller))


Counted = Annotated[Session, Depends(_counted)]
"""`Viewing`, with the count of the calls that wait: for a route that renders a whole page."""
