"""The events of a turn, up to its end or to where it waits for people: there the streams of chat protocols end.

The client answers in another request, and that request's stream continues at the event after the last one that it has
read. So `Wait.id`, which the client sends back, has the number of events that it has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError

from mulligan.serve.problems import Problem
from mulligan.serve.runs import MOST_ITEMS, Runs
from mulligan.serve.security import Caller
from mulligan.wire.event_types import EVENT, Answered, Decided, Event, RunEnded, ToolCallSettled, Waiting

__all__ = ["TurnStream", "Wait", "open_turn", "parse_wait_id"]

QUIET_SECONDS = 0.3
"""How long nothing must happen before a stream ends at a wait: the calls of a step that wait are asked about together."""
LONGEST_QUIET_SECONDS = 5.0


@dataclass(frozen=True)
class Wait:
    """A call that waits for a person. `position`: how many stored events the client has read. `fields`: as in `pending`."""

    call_id: str
    position: int
    fields: dict[str, Any]

    @property
    def id(self) -> str:
        """What the client sends back with the answer."""
        return f"{self.position}:{self.call_id}"


def parse_wait_id(wait_id: str) -> tuple[int, str]:
    """The position and the call of a `Wait.id`.

    Raises:
        Problem: it is none.
    """
    position, _, call_id = wait_id.partition(":")
    if not (position.isdecimal() and len(position) <= 15 and call_id):
        raise Problem(
            422, "invalid_input", f"There is no question or approval with the id {wait_id[:80]!r}; send back the id "
            "with which it was asked.",
        )  # fmt: skip
    return int(position), call_id


class TurnStream:
    """A turn's events: `earlier` ones, which were there already, then `live` ones. Made by `open_turn`.

    When `live` has ended, `waits` are the calls that wait for people; none: the run has ended.
    """

    def __init__(self, runs: Runs, caller: Caller, run_id: str) -> None:
        self.run_id = run_id
        self.earlier: list[Event] = []
        self.waits: list[Wait] = []
        self._runs, self._caller = runs, caller
        self._watched: AsyncIterator[Any] | None = None
        self._position = 0
        self._unsettled: set[str] = set()
        self._waiting: dict[str, Waiting] = {}
        self._is_news = False
        """Whether a call waits that the client has not been asked about."""

    async def open(self, since: int, decided: Collection[str]) -> None:
        """Read the events before `since`, and begin to watch those after it."""
        self.earlier = await self._stored(since) if since else []
        for event in self.earlier:
            self._note(event)
        asked = {event.call_id for event in self.earlier if isinstance(event, Waiting)}
        for call_id in decided:
            if call_id not in asked:
                raise Problem(422, "invalid_input", f"The call {call_id[:80]!r} does not wait for a person.")
            self._waiting.pop(call_id, None)
        self._is_news = bool(self._waiting) and not decided
        if not (self.earlier and isinstance(self.earlier[-1], RunEnded)):
            self._watched = await self._runs.watch(self._caller, self.run_id, str(self._position))

    async def _stored(self, end: int) -> list[Event]:
        events: list[Event] = []
        since = ""
        while True:
            page = await self._runs.events(self._caller, self.run_id, since, MOST_ITEMS)
            new = [EVENT.validate_python(each) for each in page["events"]]
            events += [event for event in new if getattr(event, "offset", end) < end]
            if not new or page["ended"] or len(events) >= end:
                return events
            since = page["next"]

    async def live(self) -> AsyncIterator[Event]:
        """The events as they come, until the run has ended or waits for people only."""
        if self._watched is None:
            return
        async with aclosing(self._watched) as events:  # type: ignore[type-var]
            upcoming = asyncio.create_task(_next(events))
            quiet = QUIET_SECONDS
            try:
                while True:
                    if self._may_pause():
                        done, _ = await asyncio.wait({upcoming}, timeout=quiet)
                        if not done and (waits := await self._pending()):
                            self.waits = waits
                            return
                        if not done:
                            # Somebody has just decided: the event will come.
                            quiet = min(quiet * 2, LONGEST_QUIET_SECONDS)
                            continue
                    watched = await upcoming
                    if watched is None:
                        return
                    quiet = QUIET_SECONDS
                    self._note(watched.event)
                    yield watched.event
                    upcoming = asyncio.create_task(_next(events))
            finally:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)

    def _note(self, event: Event) -> None:
        self._position = getattr(event, "offset", self._position - 1) + 1
        match event:
            case Answered():
                self._unsettled = {call.id for call in event.tool_calls}
            case Waiting():
                self._waiting[event.call_id] = event
                self._is_news = True
            case Decided():
                self._waiting.pop(event.call_id, None)
            case ToolCallSettled():
                self._waiting.pop(event.call_id, None)
                self._unsettled.discard(event.call_id)

    def _may_pause(self) -> bool:
        return bool(self._waiting) and (self._is_news or self._unsettled <= self._waiting.keys())

    async def _pending(self) -> list[Wait]:
        """What waits now, as the run says; if no worker answers, as its events say."""
        try:
            pending = await self._runs.pending(self._caller, self.run_id)
        except (RPCError, WorkflowQueryFailedError):
            pending = [
                {"call_id": each.call_id, "tool": each.name, **each.model_dump(include={"kind", "arguments", "text"})}
                for each in self._waiting.values()
            ]
        return [
            Wait(each["call_id"], self._position, each)
            for each in pending
            if each["call_id"] in self._waiting and each.get("id", self.run_id) == self.run_id
        ]


async def open_turn(
    runs: Runs, caller: Caller, run_id: str, *, since: int | None = 0, decided: Collection[str] = ()
) -> TurnStream:
    """A stream of a turn's events. What cannot be watched is refused here, before the response begins.

    `since`: how many stored events are `earlier`; None: all that there are. `decided`: the calls that this request has
    decided or answered.
    """
    stream = TurnStream(runs, caller, run_id)
    await stream.open(10**15 if since is None else since, decided)
    return stream


async def _next(events: AsyncIterator[Any]) -> Any:
    return await anext(events, None)
