"""The events of a turn, up to its end or to where it waits for people only: there the streams of chat protocols end.

The client answers in another request, and that request's stream continues after the last event that it has read. So
`Wait.id`, which the client sends back, has the token of that event. The calls of sub-agents are waited for like the run's
own; their events are not stored in the run, so `earlier` never has them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError

from mulligan.client.event_position import EventTokenError, StreamPosition
from mulligan.client.watch_run import WatchedEvent
from mulligan.run_view import changes
from mulligan.run_view.run_view import RunView
from mulligan.run_view.step_view import WaitView
from mulligan.serve.caller import Caller
from mulligan.serve.http_protocol import frame
from mulligan.serve.pauses import with_pauses
from mulligan.serve.problems import Problem, problem_of
from mulligan.serve.runs import NO_END, Runs
from mulligan.serve.shown_files import ShownFiles
from mulligan.wire.event_types import Event, RunEnded, SubRunEvent, Waiting

_EDITS = re.compile("[0-9]{0,6}")
QUIET_SECONDS = 0.3
"""How long nothing must happen before a stream ends at a wait: the next step may follow a decision of somebody else."""
LONGEST_QUIET_SECONDS = 5.0
VOID_CALL = "This call was not completed, and is not carried out."
"""What a client is told of a call that a model has begun to write, and whose attempt became void."""


class WaitingCall(NamedTuple):
    """A call that waits for a person. `sub_run`: the id of the sub-agent's run that it belongs to; "": the run's own."""

    call_id: str
    sub_run: str = ""

    @property
    def id(self) -> str:
        """A text that no other call of the turn has. A call's id has no `@`."""
        return f"{self.call_id}@{self.sub_run}" if self.sub_run else self.call_id


@dataclass(frozen=True)
class Wait:
    """A call that waits for a person.

    `own_call_id`: the call of the run itself that waits; for a sub-agent's call, the call that started the sub-agent.
    `token`: of the last event that the client has read. `fields`: as in `pending`.
    """

    call: WaitingCall
    own_call_id: str
    token: str
    fields: dict[str, Any]

    @property
    def id(self) -> str:
        """What the client sends back with the answer."""
        return self.id_of(self.token, self.call, self.fields.get("edits", 0))

    @staticmethod
    def id_of(token: str, call: WaitingCall, edits: int = 0) -> str:
        """The id of a wait, for a client that has read the event with a token. `edits`: of the call, as it was shown."""
        return f"{token}+{edits}:{call.id}" if edits else f"{token}:{call.id}"


def waits_for_person(event: Event) -> bool:
    """Whether a call of the run waits for a person from now on, or one of a run below it."""
    return isinstance(event.event if isinstance(event, SubRunEvent) else event, Waiting)


def parse_waiting_call(text: str) -> WaitingCall:
    """The call with a `WaitingCall.id`."""
    call_id, _, sub_run = text.partition("@")
    return WaitingCall(call_id, sub_run)


def parse_wait_id(wait_id: str) -> tuple[str, WaitingCall, int]:
    """The token, the call and its number of edits, of a `Wait.id`.

    Raises:
        Problem: it is none.
    """
    read, _, call = wait_id.partition(":")
    token, _, edits = read.partition("+")
    waiting = parse_waiting_call(call)
    try:
        StreamPosition.parse(token)
    except EventTokenError:
        token = ""
    if not (token and waiting.call_id and _EDITS.fullmatch(edits)):
        raise Problem(
            422, "invalid_input", f"There is no question or approval with the id {wait_id[:80]!r}; send back the id "
            "with which it was asked.",
        )  # fmt: skip
    return token, waiting, int(edits or 0)


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
        self._watched: AsyncIterator[WatchedEvent] | None = None
        self.token = ""
        """That of the newest event."""
        self._interrupts = False
        self._has_unasked = False
        """Whether a call waits that the client has not been asked about."""
        self._view = RunView(most_steps=1)
        self._replied: set[WaitView] = set()
        """The waits that this request has ended, which the events that were read do not say."""
        self._asked_before: dict[WaitingCall, dict[str, Any]] = {}
        """Calls of sub-agents that wait, with the fields as in `pending`: the events about them are not read again."""
        self._running: set[WaitingCall] = set()
        """Calls of sub-agents that this request has decided, until they are settled: the stream has their results."""

    async def open(self, since: str | None, decided: Collection[WaitingCall], *, interrupts: bool) -> None:
        """Read the events up to the token `since` (None: all that there are), and begin to watch those after it."""
        end = NO_END if since is None else StreamPosition.parse(since).base.next
        self.earlier = [each async for each in self._runs.stored_events(self._caller, self.run_id, end)] if end else []
        for event in self.earlier:
            self._note(event)
        waited_before = {WaitingCall(event.call_id) for event in self.earlier if isinstance(event, Waiting)}
        waits = dict(self._open_waits())
        for call in decided:
            if call not in waited_before and not call.sub_run:
                raise Problem(422, "invalid_input", f"The call {call.id[:80]!r} does not wait for a person.")
        self._replied = {wait for call, wait in waits.items() if call in decided}
        self.decided = frozenset(decided)
        self._running = {call for call in decided if call.sub_run}
        if decided:
            await self._note_sub_runs()
        self._interrupts, self._has_unasked = interrupts, bool(self._waiting()) and not decided
        if since is None:
            last = self.earlier[-1] if self.earlier else None
            since = str(getattr(last, "offset", -1) + 1)
        self.token = since
        if not (self.earlier and isinstance(self.earlier[-1], RunEnded)):
            self._watched = await self._runs.watch(self._caller, self.run_id, since)

    async def read(self) -> None:
        """Read the events that there are, and watch no further. `waits` are the calls that wait for people, if the run
        waits for nothing else.
        """
        async for event in self._runs.stored_events(self._caller, self.run_id):
            self.earlier.append(event)
            self._note(event)
            self.token = str(getattr(event, "offset", -1) + 1)
        if self._view.end is None:
            await self._note_sub_runs()
            self.waits = await self._pending() if self._may_pause() else []

    def files(self) -> ShownFiles:
        """What reads the files of the run's answers."""
        return ShownFiles(self._runs, self._caller, self.run_id)

    @property
    def is_ended(self) -> bool:
        """Whether the run has ended, by the events that were read."""
        return self._view.end is not None

    async def _note_sub_runs(self) -> None:
        """Note which calls of sub-agents wait. The client has read the events about them, so they are not sent again."""
        try:
            pending = await self._runs.pending(self._caller, self.run_id)
        except (RPCError, WorkflowQueryFailedError):
            return  # no worker answers now; such a call does not end the stream then
        for each in pending:
            call = _call_of(each, self.run_id)
            if call.sub_run and call not in self.decided:
                self._asked_before[call] = each

    async def live(self) -> AsyncIterator[WatchedEvent]:
        """The events as they come, until the run has ended or waits for people only."""
        if self._watched is None:
            return
        quiet = QUIET_SECONDS
        async with aclosing(with_pauses(self._watched, lambda: quiet if self._may_pause() else None)) as events:
            async for watched in events:
                if watched is not None:
                    quiet = QUIET_SECONDS
                    self._note(watched.event)
                    self.token = watched.token
                    yield watched
                elif waits := await self._pending():
                    self.waits = waits
                    return
                else:  # somebody has just decided: the event will come
                    quiet = min(quiet * 2, LONGEST_QUIET_SECONDS)

    def _note(self, event: Event) -> None:
        for change in self._view.add(event):
            sub_run = ""
            if isinstance(change, changes.Below):
                sub_run, change = change.source.id, change.change
            match change:
                case changes.WaitOpened():
                    self._has_unasked = True
                case changes.WaitEnded(call):
                    self._asked_before.pop(WaitingCall(call.id, sub_run), None)
                case changes.CallSettled(call):
                    self._forget(sub_run, call.id)
                case changes.Ended():
                    self._forget(sub_run, None)

    def _forget(self, sub_run: str, call_id: str | None) -> None:
        """Forget an ended call of a sub-agent, or the calls below a call of the run. None: all calls of the sub-run."""
        for each in {*self._running, *self._asked_before}:
            is_own = each.sub_run == sub_run and call_id in (None, each.call_id)
            if is_own or (not sub_run and self._own_call(each) == call_id):
                self._running.discard(each)
                self._asked_before.pop(each, None)

    def _open_waits(self) -> Iterator[tuple[WaitingCall, WaitView]]:
        """What the run and those below it wait for, by the events that were read, and this request has not replied to."""
        for sub_run, view in [("", self._view), *self._view.below.items()]:
            for call in view.newest_step.calls.values() if view.newest_step and not view.end else ():
                if (wait := call.open_wait) and wait not in self._replied:
                    yield WaitingCall(call.id, sub_run), wait

    def _waiting(self) -> dict[WaitingCall, dict[str, Any]]:
        """The calls that wait, with the fields as in `pending`, as far as events have them."""
        fields = {"call_id", "kind", "arguments", "text"}
        read = {call: wait.asked for call, wait in self._open_waits()}
        return self._asked_before | {
            call: {**question.model_dump(include=fields), "tool": question.name} for call, question in read.items()
        }

    def _may_pause(self) -> bool:
        """Whether the run waits for people, and each other call of the step has been settled or waits, too."""
        waiting, step = self._waiting(), self._view.newest_step
        if self._interrupts and self._has_unasked:
            return bool(waiting)
        calls = step.calls.values() if step else ()
        # The result of a deferred call may take days, as a person may. A call that has not begun may wait for another one.
        busy = {call.id for call in calls if not (call.settled or call.deferred) and (call.started or call.waits)}
        return bool(waiting) and not self._running and busy <= {self._own_call(call) for call in waiting}

    def _own_call(self, call: WaitingCall) -> str:
        """The call of the run itself that waits. The id of a sub-run is `RUN/CALL`, at each level."""
        return call.sub_run.removeprefix(f"{self.run_id}/").partition("/")[0] if call.sub_run else call.call_id

    async def _pending(self) -> list[Wait]:
        """The calls that wait now, as the run says; if no worker answers, as its events say."""
        waiting = self._waiting()
        try:
            pending = await self._runs.pending(self._caller, self.run_id)
        except (RPCError, WorkflowQueryFailedError):
            calls = list(waiting.items())
        else:
            calls = [(call, each) for each in pending if (call := _call_of(each, self.run_id)) in waiting]
        return [Wait(call, self._own_call(call), self.token, fields) for call, fields in calls]


def _call_of(pending: dict[str, Any], run_id: str) -> WaitingCall:
    """The call of an entry of `pending`."""
    owner = pending.get("id", run_id)
    return WaitingCall(pending["call_id"], "" if owner == run_id else owner)


async def open_turn(
    runs: Runs,
    caller: Caller,
    run_id: str,
    *,
    since: str | None = "",
    decided: Collection[WaitingCall] = (),
    interrupts: bool = False,
) -> TurnStream:
    """A stream of a turn's events. What cannot be watched is refused here, before the response begins.

    `since`: the token of the last event that the client has; None: all that are stored are `earlier`. `decided`: the
    calls that this request has decided or answered. `interrupts`: whether the stream ends at each new question, although
    other calls still run: where its end is what asks people.
    """
    stream = TurnStream(runs, caller, run_id)
    await stream.open(since, decided, interrupts=interrupts)
    return stream


class Translator(Protocol):
    """A protocol's form of the events of a turn."""

    def translate(self, event: Event, token: str = "") -> list[dict[str, Any]]:
        """What is sent for an event. `token`: with which a stream continues after it."""
        ...

    def paused(self, waits: Sequence[Wait]) -> list[dict[str, Any]]:
        """The end of a stream at calls that wait for people."""
        ...

    def failed(self, problem: Problem) -> dict[str, Any]:
        """The end of a stream that cannot go on."""
        ...


async def turn_frames(
    beginning: Sequence[dict[str, Any]],
    stream: TurnStream | None,
    translator: Translator,
    files: ShownFiles | None = None,
) -> AsyncIterator[bytes]:
    """The frames of a turn's stream. `files`: for a protocol that has the bytes of files."""
    try:
        for each in beginning:
            yield frame(each)
        if stream is None:
            return
        async for watched in stream.live():
            event = await files.within(watched.event) if files else watched.event
            for each in translator.translate(event, watched.token):
                yield frame(each)
        for each in translator.paused(stream.waits) if stream.waits else ():
            yield frame(each)
    except Exception as error:  # noqa: BLE001 - whatever it is, the client is told that the stream ends
        yield frame(translator.failed(problem_of(error)))
