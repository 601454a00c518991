"""What a worker process tells of its open model calls, and of its runs, to those who watch the runs.

It keeps state, and no messages: of each call what it has written, of each subscriber how far it was told. So one that is
slow or late is told what there is, once, and costs no memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from mulligan.wire.event_types import LivePart, LiveText
from mulligan.wire.live_frames import CallEnd, CallOpen, CallPlace, News, ServerFrame, Watch, WorkerFrame, Written

FASTEST, CALLS_PER_SECOND = 0.02, 1_000
"""Seconds between two frames of one call, at least; and how many frames a process makes a second for all of its calls."""
SECONDS_BETWEEN_LEASES = 1.0
MOST_SUBSCRIBERS, MOST_RUNS = 64, 5_000
"""Of a process, and the runs of each of them. Whoever is beyond it reads heartbeats."""


@dataclass(eq=False)
class _Call:
    """An attempt of a model call that is made in this process. `snapshot` says what it has written."""

    place: CallPlace
    snapshot: Callable[[], LiveText]
    published_at: float = 0.0
    timer: asyncio.TimerHandle | None = None
    is_ended: bool = False


class Publisher:
    """The open model calls of a process, and who watches their runs. On the event loop only, but for `news`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: dict[str, set[_Call]] = {}
        self._open = 0
        self._watchers: dict[str, set[Outbox]] = {}
        self._outboxes: set[Outbox] = set()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Publish while the block runs."""
        self._loop = asyncio.get_running_loop()
        renewing = asyncio.create_task(self._renew())
        try:
            yield
        finally:
            self._loop = None
            renewing.cancel()

    @contextmanager
    def calling(self, place: CallPlace, snapshot: Callable[[], LiveText]) -> Iterator[Callable[[], None]]:
        """Publish a call while the block runs. Yields what to call when it has written something."""
        call = _Call(place, snapshot)
        of_run = self._calls.setdefault(place.workflow, set())
        of_run.add(call)
        self._open += 1
        self._touch(place.workflow, call)
        try:
            yield lambda: self._wrote(call)
        finally:
            call.is_ended = True
            if call.timer is not None:
                call.timer.cancel()
            self._open -= 1
            of_run.discard(call)
            if not of_run and self._calls.get(place.workflow) is of_run:
                del self._calls[place.workflow]
            self._touch(place.workflow, call)

    def news(self, workflow: str, run: str) -> None:
        """A workflow task of a run was handled. From any thread."""
        loop = self._loop
        if loop is not None and workflow in self._watchers:
            loop.call_soon_threadsafe(self._touch, workflow, News(workflow=workflow, run=run))

    def subscribe(self) -> Outbox | None:
        """A new subscriber; None if there are too many."""
        if len(self._outboxes) >= MOST_SUBSCRIBERS:
            return None
        outbox = Outbox(self._calls, self._watchers)
        self._outboxes.add(outbox)
        return outbox

    def leave(self, outbox: Outbox) -> None:
        """A subscriber is gone."""
        self._outboxes.discard(outbox)
        outbox.unwatch_all()

    def _wrote(self, call: _Call) -> None:
        loop = self._loop
        if loop is None or call.timer is not None or call.place.workflow not in self._watchers:
            return
        pace = max(FASTEST, self._open / CALLS_PER_SECOND)
        call.timer = loop.call_at(max(loop.time(), call.published_at + pace), self._publish, call, loop)

    def _publish(self, call: _Call, loop: asyncio.AbstractEventLoop) -> None:
        call.timer, call.published_at = None, loop.time()
        self._touch(call.place.workflow, call)

    def _touch(self, workflow: str, what: _Call | News) -> None:
        for outbox in self._watchers.get(workflow, ()):
            outbox.touch(what)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_LEASES)
            for workflow in self._watchers:
                for call in self._calls.get(workflow, ()):
                    self._touch(workflow, call)


@dataclass
class _Told:
    """What a subscriber was told of a call: how many characters, and when it was last told that the call is open."""

    end: int
    at: float = 0.0


class Outbox:
    """What one subscriber has still to be told."""

    def __init__(self, calls: dict[str, set[_Call]], watchers: dict[str, set[Outbox]]) -> None:
        self._calls, self._watchers = calls, watchers
        self._watched: dict[str, dict[_Call, _Told]] = {}
        """The runs, with what it was told of their calls."""
        self._changed: dict[_Call | News, None] = {}
        self.changed = asyncio.Event()
        """Set while there is something to tell."""

    def take(self, frame: ServerFrame) -> None:
        """The subscriber watches a run, asks again for what it misses, or watches the run no longer."""
        if not isinstance(frame, Watch):
            self._unwatch(frame.workflow)
        elif frame.workflow in self._watched or len(self._watched) < MOST_RUNS:
            self._watchers.setdefault(frame.workflow, set()).add(self)
            calls = self._calls.get(frame.workflow, ())
            self._watched[frame.workflow] = {call: _Told(_end_of(call, frame.have)) for call in calls}
            for call in calls:
                self.touch(call)

    def touch(self, what: _Call | News) -> None:
        """Something has changed that the subscriber has to know."""
        self._changed[what] = None
        self.changed.set()

    def frames(self) -> Iterator[WorkerFrame]:
        """What has changed, as it is when it is taken."""
        changed, self._changed = self._changed, {}
        self.changed.clear()
        for what in changed:
            if isinstance(what, News):
                yield what
            elif (told := self._watched.get(what.place.workflow)) is not None:
                yield from self._frames_of(what, told)

    def unwatch_all(self) -> None:
        """The subscriber is gone."""
        for workflow in list(self._watched):
            self._unwatch(workflow)

    def _unwatch(self, workflow: str) -> None:
        self._watched.pop(workflow, None)
        those = self._watchers.get(workflow, set())
        those.discard(self)
        if not those:
            self._watchers.pop(workflow, None)

    def _frames_of(self, call: _Call, calls: dict[_Call, _Told]) -> Iterator[WorkerFrame]:
        told = calls.setdefault(call, _Told(0))
        now = asyncio.get_running_loop().time()
        if not call.is_ended and now - told.at > SECONDS_BETWEEN_LEASES / 2:
            told.at = now
            yield CallOpen(place=call.place.model_copy(update={"start": told.end}))
        live = call.snapshot()
        end = live.start + len(live.text)
        if end > told.end:
            start, told.end = max(live.start, told.end), end
            yield Written(
                place=call.place.model_copy(update={"start": start}),
                at=time.time(),
                text=live.text[start - live.start :],
                parts=live.parts if start == live.start else _parts_from(live.parts, start),
                is_whole=start == live.start,
            )
        if call.is_ended:
            calls.pop(call, None)
            yield CallEnd(place=call.place)


def _end_of(call: _Call, have: CallPlace | None) -> int:
    """How much of a call a subscriber has."""
    return have.start if have is not None and have.model_copy(update={"start": 0}) == call.place else 0


def _parts_from(parts: list[LivePart], start: int) -> list[LivePart]:
    """The part that a place is in, and those after it."""
    first = next((number for number in reversed(range(len(parts))) if parts[number].at <= start), 0)
    return parts[first:]
