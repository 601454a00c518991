"""One reader of a run's events for all of its watchers in this process.

The reader keeps the newest events. A watcher has a position of its own and takes from there on: what is older than the
kept events it reads from the run itself. So a watcher that is slow, or comes late, takes no memory, and loses nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client.event_position import Position, StreamPosition
from mulligan.client.first_reads import FirstReads
from mulligan.client.follow_events import EventFollower, newest_offset
from mulligan.wire.event_types import Event, TextDelta, TextVoid, ToolInputDelta, ToolProgress

MOST_KEPT, MOST_KEPT_BYTES = 2_000, 4_000_000
"""The newest events that a feed keeps: their number, and about how many bytes."""
KEPT_AT_START = 100
"""How many stored events before the run's newest one a feed begins with."""
SECONDS_WITHOUT_WATCHER = 5.0
"""How long a feed continues to read when its last watcher has left: a page that is reloaded comes back."""
TEXTS_PER_SECOND, MOST_TEXTS_OF_RUN = 3_000, 50
"""Pieces of live text that a process sends to all of its watchers, and those of one run: more are joined."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
"""Seconds until the next try while Temporal, or a worker of the run, does not answer."""
_FATAL = {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.PERMISSION_DENIED}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeedEvent:
    """An event of a run, and the position after it, without that of sub-runs."""

    event: Event
    position: Position

    @cached_property
    def json(self) -> bytes:
        """The event as JSON, encoded once for all watchers."""
        return self.event.model_dump_json().encode()


class EventFeed:
    """The newest events of one run."""

    def __init__(self, client: Client, workflow_id: str, every: float | None, first_reads: FirstReads) -> None:
        self.client, self.workflow_id, self.every = client, workflow_id, every
        self.first = 0
        """The number of the first kept event, among all that this feed has read."""
        self.start: Position | None = None
        """The position before the first kept event; None: it is not known yet."""
        self.is_ended = False
        """Whether the run is closed, and all of its events are here."""
        self.failure: Exception | None = None
        """Why the events cannot be read, now or ever: there is no such run, or it has no events."""
        self.sub_runs: list[dict[str, Any]] = []
        """The open runs of sub-agents: {`call_id`, `id`, `agent`}."""
        self.seconds_between_texts: Callable[[], float] = lambda: 0.0
        """How long live text is joined before the watchers get it."""
        self.readers: set[FeedReader] = set()
        self._kept: deque[FeedEvent] = deque()
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._first_reads = first_reads

    @property
    def end(self) -> int:
        """The number of the next event."""
        return self.first + len(self._kept)

    def get(self, number: int) -> FeedEvent:
        """The kept event with a number."""
        return self._kept[number - self.first]

    def number_after(self, stream: StreamPosition) -> int:
        """The number of the first kept event that a reader at a position has not read."""
        number = self.first + bisect_right(self._kept, stream.base, key=lambda entry: entry.position)
        # Reports of progress have the position of the event before them.
        while number > self.first:
            before = self.get(number - 1)
            if not isinstance(before.event, ToolProgress) or before.position != stream.base:
                break
            if not stream.is_new(before.event):
                break
            number -= 1
        return number

    def open(self) -> None:
        """Begin to read, if nothing reads."""
        if self._task is None:
            self._task = asyncio.create_task(self._read())

    async def close(self) -> None:
        """Stop reading the run's events."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        """Read the run. Only the first try waits for a place: a run that could not be read has probably no worker."""
        is_read = await self._first_reads.begin()
        pause = FIRST_PAUSE
        token = ""
        while True:
            try:
                if self.start is None:
                    newest = await newest_offset(self.client, self.workflow_id)
                    self.start = Position(max(0, newest - KEPT_AT_START))
                    token = self.start.token
                follower = EventFollower(self.client, self.workflow_id, token, self.every)
                follower.seconds_between_texts = self.seconds_between_texts
                follower.on_query = partial(self._see_query, follower, is_read)
                async for event in follower.events():
                    token, pause, self.failure = follower.token, FIRST_PAUSE, None
                    self._keep(FeedEvent(event, follower.position))
                self.is_ended = True
                self._wake()
                return
            except Exception as error:  # noqa: BLE001 - whatever it is: the watchers would wait for ever
                self.failure = error
                self._wake()
                if not is_temporary(error):
                    return
                _log.info("The events of %s cannot be read now: %s", self.workflow_id, error)
                await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - spreads the load
                pause = min(pause * 2, LONGEST_PAUSE)
            finally:
                is_read()

    def _see_query(self, follower: EventFollower, is_read: Callable[[], None]) -> None:
        is_read()
        if follower.sub_runs != self.sub_runs:
            self.sub_runs = follower.sub_runs
            self._wake()

    def _keep(self, event: FeedEvent) -> None:
        self._kept.append(event)
        self._bytes += _about_bytes(event.event)
        while len(self._kept) > MOST_KEPT or (self._bytes > MOST_KEPT_BYTES and len(self._kept) > 1):
            dropped = self._kept.popleft()
            self._bytes -= _about_bytes(dropped.event)
            self.first += 1
            self.start = dropped.position
        self._wake()

    def _wake(self) -> None:
        for reader in self.readers:
            reader.changed.set()


class FeedReader:
    """One watcher of a feed. `changed` is set when there may be something to read; `stream` is the watcher's position."""

    def __init__(self, feed: EventFeed, stream: StreamPosition, changed: asyncio.Event) -> None:
        self.feed, self.stream, self.changed = feed, stream, changed
        self._number: int | None = None
        """The number of the next event; None while what comes before the kept events is read from the run."""
        self._earlier: AsyncIterator[Event] | None = None
        self._next: FeedEvent | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether the run is closed, and this reader has read all of its events."""
        return self.feed.is_ended and self._next is None and self._number == self.feed.end

    async def next(self) -> FeedEvent | None:
        """The next event; None if there is none yet. It is the same one until `advance` is called.

        Raises:
            RPCError: Temporal, or a worker of the run, does not answer. The next call continues at the same position.
        """
        if self._next is None:
            self._next = await self._take()
        return self._next

    def advance(self) -> None:
        """The next event was read: go to the position after it."""
        assert self._next is not None
        self.stream.pass_event(self._next.event, self._next.position)
        self._next = None

    async def _take(self) -> FeedEvent | None:
        feed, position = self.feed, self.stream.base
        if feed.start is None:
            return None
        if self._number is not None and self._number < feed.first:
            self._number = None  # too slow: the event is not kept any more
        if self._number is None:
            if position < feed.start:
                return await self._take_earlier(feed.start)
            self._number = feed.number_after(self.stream)
        if self._number >= feed.end:
            return None
        feed_event = feed.get(self._number)
        event = self._trimmed(feed_event)
        if event is feed_event or event.position == feed_event.position:
            self._number += 1
        return event

    async def _take_earlier(self, end: Position) -> FeedEvent | None:
        """The next event before the kept ones, which comes from the run; None: they are all read."""
        if self._earlier is None:
            token = self.stream.base.token
            follower = EventFollower(self.feed.client, self.feed.workflow_id, token, self.feed.every)
            self._earlier = follower.stored_events(end.next)
        try:
            event = await anext(self._earlier, None)
        except BaseException:
            self._earlier = None
            raise
        if event is None:
            self._earlier = None
            self.stream.base = max(self.stream.base, end)
            return await self._take()
        return FeedEvent(event, StreamPosition.parse(event.token or "").base)

    def _trimmed(self, feed_event: FeedEvent) -> FeedEvent:
        """The kept event, without the text that this reader has, or before it the end of text that has become void."""
        event, read = feed_event.event, self.stream.base
        if not isinstance(event, TextDelta | ToolInputDelta) or read.next != feed_event.position.next or not read.seen:
            return feed_event
        if event.attempt != read.attempt:
            void = TextVoid(at=event.at, step=event.step, attempt=read.attempt)
            return FeedEvent(void, Position(read.next, event.attempt, 0))
        known = read.seen - (feed_event.position.seen - len(event.text))
        if known <= 0:
            return feed_event
        trimmed = {"start": event.start + known, "text": event.text[known:]}
        return FeedEvent(event.model_copy(update=trimmed), feed_event.position)


class EventFeeds:
    """The feeds of all runs that are watched in this process. One run is read once, however many watch it."""

    def __init__(self, client: Client, every: float | None = None) -> None:
        self._client, self._every = client, every
        self._first_reads = FirstReads()
        self._watchers = 0
        self._feeds: dict[str, EventFeed] = {}
        self._closing: dict[str, asyncio.TimerHandle] = {}
        self._closed: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def reading(
        self, workflow_id: str, stream: StreamPosition, changed: asyncio.Event
    ) -> AsyncIterator[FeedReader]:
        """A reader of a run's feed, while the block runs. `changed` is set when it may have something to read."""
        feed = self._feeds.get(workflow_id)
        if feed is None or (feed.failure is not None and not is_temporary(feed.failure)):
            feed = self._feeds[workflow_id] = EventFeed(self._client, workflow_id, self._every, self._first_reads)
            feed.seconds_between_texts = self._seconds_between_texts
        if closing := self._closing.pop(workflow_id, None):
            closing.cancel()
        reader = FeedReader(feed, stream, changed)
        feed.readers.add(reader)
        feed.open()
        changed.set()
        self._watchers += 1
        try:
            yield reader
        finally:
            self._watchers -= 1
            feed.readers.discard(reader)
            if not feed.readers and self._feeds.get(workflow_id) is feed:
                loop = asyncio.get_running_loop()
                self._closing[workflow_id] = loop.call_later(SECONDS_WITHOUT_WATCHER, self._close, workflow_id)

    async def close(self) -> None:
        """Stop all feeds."""
        for closing in self._closing.values():
            closing.cancel()
        feeds = list(self._feeds.values())
        self._feeds.clear()
        self._closing.clear()
        await asyncio.gather(*(feed.close() for feed in feeds))

    def _seconds_between_texts(self) -> float:
        return max(1 / MOST_TEXTS_OF_RUN, self._watchers / TEXTS_PER_SECOND)

    def _close(self, workflow_id: str) -> None:
        self._closing.pop(workflow_id, None)
        if feed := self._feeds.pop(workflow_id, None):
            task = asyncio.create_task(feed.close())
            self._closed.add(task)
            task.add_done_callback(self._closed.discard)


def is_temporary(error: Exception) -> bool:
    """Whether a run may be readable later: its worker or Temporal does not answer now."""
    return isinstance(error, RPCError) and error.status not in _FATAL


def _about_bytes(event: Event) -> int:
    """About how much memory an event takes: most of it is text."""
    texts = [value for value in (getattr(event, "text", ""), getattr(event, "result", None)) if value]
    return 500 + sum(len(text) if isinstance(text, str) else len(str(text)) for text in texts)
