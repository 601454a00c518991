"""Reads the stored events of a page of a run's steps."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import aclosing
from dataclasses import dataclass, field

from temporalio.client import Client

from mulligan.client.follow_events import EventFollower
from mulligan.wire.event_types import Event, StepStarted

STEPS_OF_PAGE = 50
"""Steps of one page."""
EVENTS_AT_ONCE = 500
"""Events of one query."""
AROUND = 60
"""Events around a page in which the correction of a mistake, or the mistake of a correction, is looked for."""
MOST_EVENTS = 5_000
"""Events of one page: a step may have hundreds of calls."""
NO_STEP = 2**31
"""The number of a step that no run has."""
MOST_BYTES_KEPT = 64_000_000
"""Bytes of events, as JSON, of ended runs that a server keeps in memory."""


@dataclass
class StepEvents:
    """The events of a page. `first` and `last`: the numbers of its steps; `total`: of the run's steps. `resume`: the token
    with which a stream continues after them, from the start of its last step on. `before` and `after`: events of the
    steps around the page, the outermost of which may be incomplete.
    """

    first: int
    last: int
    total: int
    resume: str
    events: list[Event] = field(default_factory=list)
    before: list[Event] = field(default_factory=list)
    after: list[Event] = field(default_factory=list)


def page_of(step: int) -> int:
    """The number of the page with a step, from 1."""
    return (max(1, step) - 1) // STEPS_OF_PAGE + 1


class EndedRuns:
    """The pages of ended runs that were read: they do not change, and a worker replays such a run for each query.

    They are kept in memory only, in all at most `most_bytes`; those that were read longest ago are dropped first. Whether
    a caller may see a run is checked before.
    """

    def __init__(self, most_bytes: int = MOST_BYTES_KEPT) -> None:
        self._kept: OrderedDict[tuple[str, str, str, int | None], tuple[StepEvents, int]] = OrderedDict()
        self._most_bytes = most_bytes

    async def read(self, client: Client, run_id: str, ended_run: str, page: int | None) -> StepEvents:
        """A page of a run. `ended_run`: the id of Temporal's run that has ended."""
        key = client.namespace, run_id, ended_run, page
        if key not in self._kept:
            read = await _read_page(client, run_id, page)
            self._kept[key] = read, _bytes_of(read)
        self._kept.move_to_end(key)
        step_events, _ = self._kept[key]
        while sum(size for _, size in self._kept.values()) > self._most_bytes:
            self._kept.popitem(last=False)
        return step_events


async def read_step_events(
    client: Client, run_id: str, page: int | None, ended: EndedRuns, ended_run: str | None
) -> StepEvents:
    """The events of a page of steps. `page`: its number, from 1; None: the newest. `ended_run`: the id of Temporal's run if
    it has ended, whose events are then kept in `ended`.

    Raises:
        RPCError: no worker of the run answers.
        WorkflowQueryFailedError: the workflow has no events.
    """
    if ended_run is None:
        return await _read_page(client, run_id, page)
    return await ended.read(client, run_id, ended_run, page)


async def _read_page(client: Client, run_id: str, page: int | None) -> StepEvents:
    _, run = await _begin_of(client, run_id, NO_STEP)
    pages = page_of(run.steps)
    page = pages if page is None else min(page, pages)
    first, last = (page - 1) * STEPS_OF_PAGE + 1, min(run.steps, page * STEPS_OF_PAGE)
    start = 0 if page == 1 else (await _begin_of(client, run_id, first))[0]
    read = StepEvents(first, last, run.steps, str(start))
    follower = EventFollower(client, run_id, str(max(0, start - AROUND)), 1)
    follower.page_size = EVENTS_AT_ONCE
    async with aclosing(follower.stored_events(run.total)) as stored:  # type: ignore[type-var]
        async for event in stored:
            offset, step = getattr(event, "offset", 0), getattr(event, "step", 0)
            # What comes after the last step of all belongs to its page.
            is_of_page = len(read.events) < MOST_EVENTS and (page == pages or (step <= last and not read.after))
            part = read.before if offset < start else read.events if is_of_page else read.after
            part.append(event)
            if part is read.events and isinstance(event, StepStarted):
                read.resume = str(offset)
            if len(read.after) >= AROUND:
                break
    return read


async def _begin_of(client: Client, run_id: str, step: int) -> tuple[int, EventFollower]:
    """The offset of a step's first event, 0 if it is not there any more; and the reader, which has counted the steps."""
    follower = EventFollower(client, run_id, "", 1)
    follower.page_size = 1
    async with aclosing(follower.stored_events(step=step)) as stored:  # type: ignore[type-var]
        async for event in stored:
            return getattr(event, "offset", 0), follower
    return 0, follower


def _bytes_of(read: StepEvents) -> int:
    return sum(len(event.model_dump_json()) for event in (*read.events, *read.before, *read.after))
