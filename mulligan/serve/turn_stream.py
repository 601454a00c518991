"""The events of a turn, up to its end or to where it waits for people: there the streams of chat protocols end.

The client answers in another request, and that request's stream continues after the last event that it has read. So
`Wait.id`, which the client sends back, has the token of that event. The calls of sub-agents are waited for like the run's
own; their events are not stored in the run, so `earlier` never has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError

from mulligan.client.event_position import EventTokenError, StreamPosition
from mulligan.serve.http_protocol import frame
from mulligan.serve.problems import Problem, problem_of
from mulligan.serve.runs import NO_END, Runs
from mulligan.serve.security import Caller
from mulligan.wire.event_types import (
    Answered,
    Decided,
    Event,
    RunEnded,
    SubRunEvent,
    ToolCallSettled,
    Waiting,
)

__all__ = [
    "TurnStream", "Wait", "WaitingCall", "asks_person", "open_turn", "parse_wait_id", "parse_waiting_call", "turn_frames",
]  # fmt: skip

QUIET_SECONDS = 0.3
"""How long nothing must happen before a stream ends at a wait: the calls of a step that wait are asked about together."""
LONGEST_QUIET_SECONDS = 5.0


class WaitingCall(NamedTuple):
    """A call that waits for a person. `sub_run`: the id of the sub-agent's run that it belongs to; "": the run's own."""

    call_id: str
    sub_run: str = ""

    @property
    def id(self) -> str:
        """One text, which no other call of the turn has. A call's id has no `@`."""
        return f"{self.call_id}@{self.sub_run}" if self.sub_run else self.call_id


@dataclass(frozen=True)
class Wait:
    """A call that waits for a person.

    `own_call_id`: the call of the run itself that waits; for a sub-agent's call the one that started the sub-agent.
    `token`: of the last event that the client has read. `fields`: as in `pending`.
    """

    call: WaitingCall
    own_call_id: str
    token: str
    fields: dict[str, Any]

    @property
    def id(self) -> str:
        """What the client sends back with the answer."""
        return f"{self.token}:{self.call.id}"


def asks_person(event: Event) -> bool:
    """Whether a call of the run waits for a person from now on, or one of a run below it."""
    return isinstance(_innermost(event)[1], Waiting)


def _innermost(event: Event) -> tuple[str, Event]:
    """An event, and the id of the sub-agent's run that it belongs to; "": the run's own."""
    sub_run = ""
    while isinstance(event, SubRunEvent):
        sub_run, event = event.source.id, event.event
    return sub_run, event


def parse_waiting_call(text: str) -> WaitingCall:
    """The call with a `WaitingCall.id`."""
    call_id, _, sub_run = text.partition("@")
    return WaitingCall(call_id, sub_run)


def parse_wait_id(wait_id: str) -> tuple[str, WaitingCall]:
    """The token and the call of a `Wait.id`.

    Raises:
        Problem: it is none.
    """
    token, _, call = wait_id.partition(":")
    waiting = parse_waiting_call(call)
    try:
        StreamPosition.parse(token)
    except EventTokenError:
        token = ""
    if not (token and waiting.call_id):
        raise Problem(
            422, "invalid_input", f"There is no question or approval with the id {wait_id[:80]!r}; send back the id "
            "with which it was asked.",
        )  # fmt: skip
    return token, waiting


class TurnStream:
    """A turn's events: `earlier` ones, which were there already, then `live` ones. Made by `open_turn`.

    When `live` has ended, `waits` are the calls that wait for people; none: the run has ended. `decided`: the calls that
    this request has decided or answered.
    """

    def __init__(self, runs: Runs, caller: Caller, run_id: str) -> None:
        self.run_id = run_id
        self.earlier: list[Event] = []
        self.waits: list[Wait] = []
        self.decided: frozenset[WaitingCall] = frozenset()
        self._runs, self._caller = runs, caller
        self._watched: AsyncIterator[Any] | None = None
        self._token = ""
        self._unsettled: set[str] = set()
        self._waiting: dict[WaitingCall, dict[str, Any]] = {}
        """The fields as in `pending`, as far as events have them."""
        self._running: set[WaitingCall] = set()
        """Calls of sub-agents that this request has decided, until they are settled: the stream has their results."""
        self._has_new_waits = False
        """Whether a call waits that the client has not been asked about."""

    async def open(self, since: str | None, decided: Collection[WaitingCall]) -> None:
        """Read the events up to the token `since` (None: all that there are), and begin to watch those after it."""
        end = NO_END if since is None else StreamPosition.parse(since).base.next
        self.earlier = [each async for each in self._runs.stored_events(self._caller, self.run_id, end)] if end else []
        for event in self.earlier:
            self._note(event)
        asked = {WaitingCall(event.call_id) for event in self.earlier if isinstance(event, Waiting)}
        for call in decided:
            if call not in asked and not call.sub_run:
                raise Problem(422, "invalid_input", f"The call {call.id[:80]!r} does not wait for a person.")
            self._waiting.pop(call, None)
        self.decided = frozenset(decided)
        self._running = {call for call in decided if call.sub_run}
        if decided:
            await self._note_sub_runs()
        self._has_new_waits = bool(self._waiting) and not decided
        if since is None:
            last = self.earlier[-1] if self.earlier else None
            since = str(getattr(last, "offset", -1) + 1)
        self._token = since
        if not (self.earlier and isinstance(self.earlier[-1], RunEnded)):
            self._watched = await self._runs.watch(self._caller, self.run_id, since)

    async def _note_sub_runs(self) -> None:
        """Note which calls of sub-agents wait. The client has read the events about them, so they are not sent again."""
        try:
            pending = await self._runs.pending(self._caller, self.run_id)
        except (RPCError, WorkflowQueryFailedError):
            return  # no worker answers now; such a call does not end the stream then
        for each in pending:
            call = _call_of(each, self.run_id)
            if call.sub_run and call not in self.decided:
                self._waiting[call] = each

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
                    self._token = watched.token
                    yield watched.event
                    upcoming = asyncio.create_task(_next(events))
            finally:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)

    def _note(self, event: Event) -> None:
        sub_run, event = _innermost(event)
        match event:
            case Answered() if not sub_run:
                self._unsettled = {call.id for call in event.tool_calls}
            case Waiting():
                fields = event.model_dump(include={"call_id", "kind", "arguments", "text"})
                self._waiting[WaitingCall(event.call_id, sub_run)] = {**fields, "tool": event.name}
                self._has_new_waits = True
            case Decided():
                self._waiting.pop(WaitingCall(event.call_id, sub_run), None)
            case ToolCallSettled():
                self._waiting.pop(WaitingCall(event.call_id, sub_run), None)
                self._running.discard(WaitingCall(event.call_id, sub_run))
                if not sub_run:
                    self._unsettled.discard(event.call_id)
                    self._running = {call for call in self._running if self._own_call(call) != event.call_id}
            case RunEnded():
                self._running = {call for call in self._running if call.sub_run != sub_run}
                self._waiting = {call: fields for call, fields in self._waiting.items() if call.sub_run != sub_run}

    def _may_pause(self) -> bool:
        if not self._waiting or self._has_new_waits:
            return bool(self._waiting)
        return not self._running and self._unsettled <= {self._own_call(call) for call in self._waiting}

    def _own_call(self, call: WaitingCall) -> str:
        """The call of the run itself that waits. The id of a sub-run is `RUN/CALL`, at each level."""
        return call.sub_run.removeprefix(f"{self.run_id}/").partition("/")[0] if call.sub_run else call.call_id

    async def _pending(self) -> list[Wait]:
        """What waits now, as the run says; if no worker answers, as its events say."""
        try:
            pending = await self._runs.pending(self._caller, self.run_id)
        except (RPCError, WorkflowQueryFailedError):
            found = list(self._waiting.items())
        else:
            found = [(call, each) for each in pending if (call := _call_of(each, self.run_id)) in self._waiting]
        return [Wait(call, self._own_call(call), self._token, fields) for call, fields in found]


def _call_of(pending: dict[str, Any], run_id: str) -> WaitingCall:
    """The call of an entry of `pending`."""
    owner = pending.get("id", run_id)
    return WaitingCall(pending["call_id"], "" if owner == run_id else owner)


async def open_turn(
    runs: Runs, caller: Caller, run_id: str, *, since: str | None = "", decided: Collection[WaitingCall] = ()
) -> TurnStream:
    """A stream of a turn's events. What cannot be watched is refused here, before the response begins.

    `since`: the token of the last event that the client has; None: all that are stored are `earlier`. `decided`: the
    calls that this request has decided or answered.
    """
    stream = TurnStream(runs, caller, run_id)
    await stream.open(since, decided)
    return stream


class Translator(Protocol):
    """A protocol's form of the events of a turn."""

    def translate(self, event: Event) -> list[dict[str, Any]]:
        """What is sent for an event."""
        ...

    def paused(self, waits: Sequence[Wait]) -> list[dict[str, Any]]:
        """The end of a stream at calls that wait for people."""
        ...

    def failed(self, problem: Problem) -> dict[str, Any]:
        """The end of a stream that cannot go on."""
        ...


async def turn_frames(
    beginning: Sequence[dict[str, Any]], stream: TurnStream | None, translator: Translator
) -> AsyncIterator[bytes]:
    """The frames of a turn's stream."""
    try:
        for each in beginning:
            yield frame(each)
        if stream is None:
            return
        async for event in stream.live():
            for each in translator.translate(event):
                yield frame(each)
        for each in translator.paused(stream.waits) if stream.waits else ():
            yield frame(each)
    except Exception as error:  # noqa: BLE001 - whatever it is, the client is told that the stream ends
        yield frame(translator.failed(problem_of(error)))


async def _next(events: AsyncIterator[Any]) -> Any:
    return await anext(events, None)
