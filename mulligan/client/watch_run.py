"""Watches a run and the runs of its sub-agents through feeds that all watchers of a process share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from temporalio.service import RPCError

from mulligan.client.event_feed import EventFeeds, FeedEvent, FeedReader, is_temporary
from mulligan.client.event_position import Position, StreamPosition
from mulligan.wire.event_types import Event, RunEnded, SubRunEvent, SubRunSource, ToolCallSettled

SECONDS_BETWEEN_TRIES = 1.0
SECONDS_FOR_SUB_RUN = 30.0
"""How long the result of a sub-agent's call waits for the last events of its run, if these cannot be read."""
MOST_OPEN = 50
"""Open sub-runs of one run that are read at the same time. The others follow as these end."""


@dataclass(frozen=True)
class WatchedEvent:
    """An event of a run, or as a `SubRunEvent` of a run below it.

    `token`: no other event of the run has it, and a watcher continues after it. `position`: in the run itself: it never goes
    back, and two events have the same only if one of them is of a sub-run, or the progress of a call.
    """

    event: Event
    token: str
    position: Position
    kept: FeedEvent | None = None

    @property
    def json(self) -> bytes:
        """The event as JSON, with its token."""
        if self.kept is not None and self.kept.event.token == self.token:
            return self.kept.json
        return self.event.model_copy(update={"token": self.token}).model_dump_json().encode()


async def watch_run(feeds: EventFeeds, workflow_id: str, since: str = "") -> AsyncIterator[WatchedEvent]:
    """Yield the events of a run and its sub-runs after the one with the token `since`, until the run is closed.

    While Temporal or a worker of the run does not answer, it waits.

    Raises:
        EventTokenError: `since` is not a token.
        RPCError: there is no such run.
        WorkflowQueryFailedError: the workflow has no events.
    """
    stream, changed = StreamPosition.parse(since), asyncio.Event()
    root = await _WatchedRun.open(feeds, workflow_id, stream, changed)
    async with root.stack:
        while True:
            changed.clear()
            try:
                while (next_event := await root.next()) is not None:
                    event, kept = next_event
                    yield WatchedEvent(event, stream.token, stream.base, kept)
            except RPCError as error:
                if not is_temporary(error):
                    raise
                await asyncio.sleep(SECONDS_BETWEEN_TRIES)
                continue
            if root.is_ended:
                return
            if (failure := root.reader.feed.failure) is not None and not is_temporary(failure):
                raise failure
            timeout = SECONDS_BETWEEN_TRIES if root.is_held else None
            try:
                async with asyncio.timeout(timeout):
                    await changed.wait()
            except TimeoutError:
                continue


@dataclass
class _WatchedRun:
    """One run of the tree, and those below it that are open."""

    feeds: EventFeeds
    reader: FeedReader
    changed: asyncio.Event
    stack: AsyncExitStack
    source: SubRunSource | None = None
    below: dict[str, _WatchedRun] = field(default_factory=dict)
    held_since: float | None = None

    @classmethod
    async def open(
        cls,
        feeds: EventFeeds,
        workflow_id: str,
        stream: StreamPosition,
        changed: asyncio.Event,
        source: SubRunSource | None = None,
    ) -> _WatchedRun:
        """Begin to read a run. Leaving `stack` ends it, and all below it."""
        stack = AsyncExitStack()
        reader = await stack.enter_async_context(feeds.reading(workflow_id, stream, changed))
        run = cls(feeds, reader, changed, stack, source)
        stack.push_async_callback(run._close_below)
        return run

    @property
    def is_ended(self) -> bool:
        """Whether all events of the run, and of those below it, were read."""
        return self.reader.is_at_end and not self.below

    @property
    def is_held(self) -> bool:
        """Whether an event waits for those of a sub-run, here or below."""
        return self.held_since is not None or any(run.is_held for run in self.below.values())

    async def next(self) -> tuple[Event, FeedEvent | None] | None:
        """The next event; None if there is none yet."""
        if (below := await self._next_below()) is not None:
            return below
        kept = await self.reader.next()
        if kept is None:
            await self._open_new()
            return await self._next_below()
        if not await self._may_pass(kept.event):
            return await self._next_below()
        self.held_since = None
        self.reader.advance()
        return kept.event, kept

    def wrap(self, event: Event) -> Event:
        """An event of this run as one of the run above; one of a run further below stays as it is."""
        if isinstance(event, SubRunEvent) or self.source is None:
            return event
        return SubRunEvent(at=event.at, source=self.source, event=event.model_copy(update={"token": None}))

    async def _next_below(self) -> tuple[Event, FeedEvent | None] | None:
        for run in list(self.below.values()):
            if (below := await run.next()) is not None:
                return run.wrap(below[0]), None
        return None

    async def _open_new(self) -> None:
        """Begin to read the runs that have started since, as many as may be read at the same time."""
        for each in self.reader.feed.sub_runs:
            if each["call_id"] not in self.below and len(self.below) < MOST_OPEN:
                await self._open_below(each["call_id"], each["id"], each["agent"])

    async def _open_below(self, call_id: str, workflow_id: str, agent: str) -> _WatchedRun:
        stream = self.reader.stream.runs.setdefault(call_id, StreamPosition())
        depth = self.source.depth + 1 if self.source else 1
        parent = self.reader.feed.workflow_id
        source = SubRunSource(id=workflow_id, agent=agent, call_id=call_id, parent=parent, depth=depth)
        run = self.below[call_id] = await _WatchedRun.open(self.feeds, workflow_id, stream, self.changed, source)
        return run

    async def _may_pass(self, event: Event) -> bool:
        """Whether the next event does not have to wait for those of the runs that it ends."""
        if isinstance(event, ToolCallSettled) and event.run is not None and event.run.id:
            run = self.below.get(event.call_id) or await self._open_below(event.call_id, event.run.id, event.run.agent)
            ending = {event.call_id: run}
        elif isinstance(event, RunEnded):
            ending = dict(self.below)
        else:
            return True
        if not self._is_over(ending.values()):
            return False
        for call_id, run in ending.items():
            del self.below[call_id]
            await run.stack.aclose()
        return True

    def _is_over(self, runs: Iterable[_WatchedRun]) -> bool:
        """Whether all events of these runs were read, or cannot be read."""
        unread = [run for run in runs if not (run.is_ended or run.cannot_be_read)]
        if not unread:
            return True
        now = asyncio.get_running_loop().time()
        self.held_since = self.held_since or now
        return now - self.held_since > SECONDS_FOR_SUB_RUN and all(run.reader.feed.failure for run in unread)

    @property
    def cannot_be_read(self) -> bool:
        """Whether the run does not exist any more, or has no events."""
        failure = self.reader.feed.failure
        return failure is not None and not is_temporary(failure)

    async def _close_below(self) -> None:
        for run in self.below.values():
            await run.stack.aclose()
        self.below.clear()
