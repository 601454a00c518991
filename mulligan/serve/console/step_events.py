"""Reads the stored events of some of a run's steps: those of a page, or from a step on."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from temporalio.client import Client

from mulligan.client.follow_events import EventFollower, newest_offset
from mulligan.wire.event_types import Compacted, Event, StepStarted

__all__ = ["STEPS_OF_PAGE", "EndedRuns", "StepEvents", "page_of", "read_step_events"]

STEPS_OF_PAGE = 50
"""Steps of one page."""
EVENTS_AT_ONCE, WINDOW = 1_000, 300
"""Events of one query; and how many are read to find the place of a step."""
AROUND = 60
"""Events around a page in which the correction of a mistake, or the mistake of a correction, is looked for."""
MOST_EVENTS = 5_000
"""Events of one page: a step may have hundreds of calls."""
MOST_BYTES_KEPT = 64_000_000
"""Bytes of events, as JSON, of ended runs that a server keeps in memory."""


@dataclass(frozen=True)
class StepEvents:
    """The events of a page. `first` and `last`: the numbers of its steps; `total`: of the run's steps. `resume`: the token
    with which a stream continues after them, from the start of its last step on. `before` and `after`: events of the
    steps around the page, the outermost of which may be incomplete.
    """

    events: list[Event]
    before: list[Event]
    after: list[Event]
    first: int
    last: int
    total: int
    resume: str


def page_of(step: int) -> int:
    """The number of the page with a step, from 1."""
    return (step - 1) // STEPS_OF_PAGE + 1


class EndedRuns:
    """The events of ended runs that were read: they do not change, and a worker replays such a run for each query.

    They are kept in memory only, in all at most `most_bytes`; those that were read longest ago are dropped first. Whether
    a caller may see a run is checked before.
    """

    def __init__(self, most_bytes: int = MOST_BYTES_KEPT) -> None:
        self._readers: OrderedDict[tuple[str, str, str], _Reader] = OrderedDict()
        self._most_bytes = most_bytes

    async def reader(self, client: Client, run_id: str, workflow_run: str) -> _Reader:
        """What reads the events of a run. `workflow_run`: the id of Temporal's run that has ended."""
        key = client.namespace, run_id, workflow_run
        if key not in self._readers:
            self._readers[key] = _Reader(client, run_id, await newest_offset(client, run_id), EVENTS_AT_ONCE)
        self._readers.move_to_end(key)
        return self._readers[key]

    def drop_oldest(self) -> None:
        """Drop runs until the others are within the bound."""
        while self._readers and sum(each.bytes for each in self._readers.values()) > self._most_bytes:
            self._readers.popitem(last=False)


async def read_step_events(
    client: Client, run_id: str, page: int | None, ended: EndedRuns, ended_run: str | None
) -> StepEvents:
    """The events of a page of steps. `page`: its number, from 1; None: the newest. `ended_run`: the id of Temporal's run if
    it has ended, whose events are then kept in `ended`.

    A worker replays a run that has ended for each query, so there are few: the place of a step is estimated.

    Raises:
        RPCError: no worker of the run answers.
        WorkflowQueryFailedError: the workflow has no events.
    """
    if ended_run is None:
        return await _read_page(_Reader(client, run_id, await newest_offset(client, run_id)), page)
    found = await _read_page(await ended.reader(client, run_id, ended_run), page)
    ended.drop_oldest()
    return found


async def _read_page(reader: _Reader, page: int | None) -> StepEvents:
    total = await reader.newest_step()
    pages = max(1, -(-total // STEPS_OF_PAGE))
    page = pages if page is None else min(max(1, page), pages)
    first, last = (page - 1) * STEPS_OF_PAGE + 1, min(total, page * STEPS_OF_PAGE)
    start = 0 if first == 1 else await reader.offset_of(first)
    # What comes after the last step of all belongs to its page.
    end = reader.total if page == pages else await reader.offset_of(last + 1)
    end = min(end, start + MOST_EVENTS)
    outer = max(0, start - AROUND), min(end + AROUND, reader.total)
    await reader.read(*outer)
    before, events, after = [await reader.read(*part) for part in ((outer[0], start), (start, end), (end, outer[1]))]
    begun = [event.offset for event in events if isinstance(event, StepStarted)]
    return StepEvents(events, before, after, first, last, total, str(begun[-1] if begun else start))


class _Reader:
    """Reads events by their offsets, each once. `total`: how many there are; `window`: how many are read to find a place."""

    def __init__(self, client: Client, run_id: str, total: int, window: int = WINDOW) -> None:
        self._window = window
        self.bytes = 0
        """Of the events that were read, as JSON."""
        self._client, self._run_id, self.total = client, run_id, total
        self._events: dict[int, Event] = {}
        self._read: set[int] = set()
        """Offsets that were asked for: an older part of a run may be lost, and a newer version has other types."""

    async def read(self, start: int, end: int) -> list[Event]:
        """The events from one offset up to another."""
        missing = [offset for offset in range(start, end) if offset not in self._read]
        if missing:
            first, last = missing[0], missing[-1] + 1
            follower = EventFollower(self._client, self._run_id, str(first), 1)
            follower.page_size = EVENTS_AT_ONCE
            async for event in follower.stored_events(last):
                self._events[int(getattr(event, "offset", 0))] = event
                self.bytes += len(event.model_dump_json())
            self._read |= set(range(first, last))
        return [self._events[offset] for offset in range(start, end) if offset in self._events]

    async def newest_step(self) -> int:
        """The number of the newest step; 0 before the first."""
        width, end = self._window, self.total
        while end > 0:
            start = max(0, end - width)
            if steps := [event.step for event in await self.read(start, end) if isinstance(event, StepStarted)]:
                return max(steps)
            end, width = start, width * 4
        return 0

    async def offset_of(self, step: int) -> int:
        """The offset of the event with which a step begins. Steps are numbered in order, and of about equal length."""
        newest = await self.newest_step()
        while True:
            low, low_step, high, high_step = self._around(step, newest)
            if high_step == step or low >= high:
                return await self._with_compaction(high)
            share = (step - low_step) / (high_step - low_step)
            guess = min(max(low, int(low + (high - low) * share) - self._window // 2), high - 1)
            await self.read(guess, min(guess + self._window, high))
            if self._around(step, newest) == (low, low_step, high, high_step):
                # No step begins there: one step has hundreds of events.
                await self.read(low, high)
                return await self._with_compaction(self._around(step, newest)[2])

    def _around(self, step: int, newest: int) -> tuple[int, int, int, int]:
        """Between which offsets a step begins, as far as is known, and the numbers of the steps that begin there."""
        begun = [event for event in self._events.values() if isinstance(event, StepStarted)]
        low = max(((event.offset + 1, event.step) for event in begun if event.step < step), default=(0, 0))
        high = min(
            ((event.offset, event.step) for event in begun if event.step >= step), default=(self.total, newest + 1)
        )
        return *low, *high

    async def _with_compaction(self, offset: int) -> int:
        """The offset of the compaction before a step, if there is one: it belongs to that step."""
        before = await self.read(max(0, offset - 1), offset)
        return before[0].offset if before and isinstance(before[0], Compacted) else offset
