"""Reads the stored events of some of a run's steps: those of a page, or from a step on."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio.client import Client

from mulligan.client.follow_events import EventFollower, newest_offset
from mulligan.wire.event_types import Event, StepStarted

__all__ = ["STEPS_OF_PAGE", "StepEvents", "read_step_events"]

STEPS_OF_PAGE = 50
"""Steps of one page."""
EVENTS_AT_ONCE = 200
MOST_EVENTS = 5_000
"""Events of one page: a step may have hundreds of calls."""


@dataclass(frozen=True)
class StepEvents:
    """The events of a page. `first` and `last`: the numbers of its steps; `total`: of the run's steps. `resume`: the token
    with which a stream continues after them, from the start of its last step on.
    """

    events: list[Event]
    first: int
    last: int
    total: int
    resume: str


async def read_step_events(client: Client, run_id: str, page: int | None) -> StepEvents:
    """The events of a page of steps. `page`: its number, from 1; None: the newest.

    Raises:
        RPCError: no worker of the run answers.
        WorkflowQueryFailedError: the workflow has no events.
    """
    reader = _Reader(client, run_id, await newest_offset(client, run_id))
    total = await reader.newest_step()
    pages = max(1, -(-total // STEPS_OF_PAGE))
    page = pages if page is None else min(max(1, page), pages)
    first, last = (page - 1) * STEPS_OF_PAGE + 1, min(total, page * STEPS_OF_PAGE)
    start = 0 if first == 1 else await reader.offset_of(first)
    # What comes after the last step of all belongs to its page.
    end = reader.total if page == pages else await reader.offset_of(last + 1)
    events = await reader.read(start, min(end, start + MOST_EVENTS))
    begun = [event.offset for event in events if isinstance(event, StepStarted)]
    return StepEvents(events, first, last, total, str(begun[-1] if begun else start))


class _Reader:
    """Reads events by their offsets. `total`: how many there are."""

    def __init__(self, client: Client, run_id: str, total: int) -> None:
        self._client, self._run_id, self.total = client, run_id, total
        self._steps: dict[int, int] = {}

    async def read(self, start: int, end: int) -> list[Event]:
        """The events from one offset up to another."""
        events: list[Event] = []
        while start < end:
            until = min(start + EVENTS_AT_ONCE, end)
            follower = EventFollower(self._client, self._run_id, str(start), 1)
            events += [event async for event in follower.stored_events(until)]
            start = until
        return events

    async def newest_step(self) -> int:
        """The number of the newest step; 0 before the first."""
        return await self._step_before(self.total)

    async def offset_of(self, step: int) -> int:
        """The offset of the event with which a step begins; steps are numbered in order."""
        low, high = 0, self.total
        while low < high:
            middle = (low + high) // 2
            if await self._step_before(middle + 1) < step:
                low = middle + 1
            else:
                high = middle
        return low

    async def _step_before(self, offset: int) -> int:
        """The number of the newest step that has begun before an offset."""
        if offset in self._steps:
            return self._steps[offset]
        found, width, end = 0, 8, offset
        while end > 0 and not found:
            start = max(0, end - width)
            numbers = [getattr(event, "step", 0) for event in await self.read(start, end)]
            # A compaction has the number of the step that begins after it.
            found = max(numbers, default=0)
            width, end = width * 4, start
        self._steps[offset] = found
        return found
