"""Watches a run through feeds that all watchers of a process share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from temporalio.service import RPCError

from mulligan.client.event_feed import EventFeeds, FeedEvent, is_temporary
from mulligan.client.event_position import Position

__all__ = ["watch_run"]

SECONDS_BETWEEN_TRIES = 1.0


async def watch_run(feeds: EventFeeds, workflow_id: str, since: str = "") -> AsyncIterator[FeedEvent]:
    """Yield the events of a run after the one with the token `since`, until it is closed.

    While Temporal or a worker of the run does not answer, it waits.

    Raises:
        EventTokenError: `since` is not a token.
        RPCError: there is no such run.
        WorkflowQueryFailedError: the workflow has no events.
    """
    changed = asyncio.Event()
    async with feeds.reading(workflow_id, Position.parse(since), changed) as reader:
        while True:
            changed.clear()
            try:
                while (event := await reader.take()) is not None:
                    yield event
            except RPCError as error:
                if not is_temporary(error):
                    raise
                await asyncio.sleep(SECONDS_BETWEEN_TRIES)
                continue
            if reader.is_at_end:
                return
            if reader.failure is not None and not is_temporary(reader.failure):
                raise reader.failure
            await changed.wait()
