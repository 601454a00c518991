"""The events of a run that a test writes down, and what a server reads of them: `LoggedRuns` in place of a run on a server.

What decides the frames of a stream is the product's: `watch_run` with its feeds, and `live_events` for what a model writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from mulligan.client.event_feed import EventFeed, EventFeeds, FeedEvent, FeedReader
from mulligan.client.event_position import Position, StreamPosition
from mulligan.client.live_reader import live_events
from mulligan.client.watch_run import WatchedEvent, watch_run
from mulligan.run_view.run_view import RunView
from mulligan.serve.caller import Caller
from mulligan.serve.runs import NO_END
from mulligan.serve.turn_stream import WaitingCall
from mulligan.wire.event_types import EVENT, PART_GAP, Event, LiveCall, LivePart, LiveText, TextDelta, TextVoid

START = datetime(2026, 11, 25, 12, tzinfo=UTC)
ENDS_TEXT = ("step_started", "answered", "model_fallback", "run_ended")
"""After these events, nothing of what a model writes has been read."""
USAGE = {"input_tokens": 10, "output_tokens": 5}
Json = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """A place of a log where its client replies: after `length` events. `calls`: those that it decides or answers."""

    length: int
    calls: tuple[WaitingCall, ...]


@dataclass
class RunLog:
    """The events of one run, and those of the runs of its sub-agents by the ids of the calls. Each method adds to them."""

    run_id: str = "run-1"
    agent: str = "shop"
    entries: list[FeedEvent] = field(default_factory=list)
    below: dict[str, RunLog] = field(default_factory=dict)
    replies: list[Reply] = field(default_factory=list)
    step: int = 0
    _attempt: int = 1
    _written: str = ""
    _parts: list[LivePart] = field(default_factory=list)

    @property
    def events(self) -> list[Event]:
        return [entry.event for entry in self.entries]

    @property
    def position(self) -> Position:
        return self.entries[-1].position if self.entries else Position()

    @property
    def is_ended(self) -> bool:
        return bool(self.entries) and self.entries[-1].event.type == "run_ended"

    def tree(self) -> Iterator[RunLog]:
        """The log, and those of all runs below it."""
        yield self
        for below in self.below.values():
            yield from below.tree()

    def until(self, length: int) -> RunLog:
        """The log while it has so many events."""
        return replace(self, entries=self.entries[:length])

    def stored_only(self) -> RunLog:
        """The log for a reader who comes after the end: nothing of what was live is there."""
        stored = [each for each in self.entries if hasattr(each.event, "offset")]
        read = [FeedEvent(each.event, Position(each.position.next)) for each in stored]
        below = {name: each.stored_only() for name, each in self.below.items()}
        return replace(self, entries=read, below=below)

    def begin(self) -> RunLog:
        return self.store("run_started", turn=1, agent=self.agent, model="openai:a", max_steps=20).ask_model()

    def ask_model(self, model: str = "openai:a") -> RunLog:
        """The next step begins."""
        self.step += 1
        self._begin_attempt(1)
        return self.store("step_started", step=self.step, model=model)

    def write(self, *pieces: str) -> RunLog:
        """The model writes text, of which each piece is read alone."""
        for piece in pieces:
            if self._parts and self._parts[-1].call is not None:
                self._open_part(None)
            self._written += piece
            self._read()
        return self

    def write_call(self, call: Json, *pieces: str, index: int = 0, may_wait: bool = False) -> RunLog:
        """The model writes a call: its name, then each piece of its arguments (none given: all at once)."""
        described = LiveCall(index=index, name=call["name"], call_id=call["id"], may_wait=may_wait)
        self._open_part(described)
        for piece in ("", *(pieces or (call["arguments"],))):
            self._written += piece
            self._read()
        return self

    def lose(self) -> RunLog:
        """What the model has written is void: a worker was lost, or the stream broke off."""
        void = TextVoid(at=self._now(), step=self.step, attempt=self._attempt)
        following = Position(self.position.next, self._attempt + 1, 0)
        self.entries.append(FeedEvent(void, following))
        self._begin_attempt(self._attempt + 1)
        return self

    def fall_back(self, model: str = "openai:b") -> RunLog:
        self._begin_attempt(1)
        error = {"kind": "ModelUnavailableError", "message": "It is down."}
        return self.store("model_fallback", step=self.step, model=model, error=error)

    def answer(self, text: str = "", *calls: Json, **fields: Any) -> RunLog:
        return self.store("answered", step=self.step, text=text, tool_calls=list(calls), usage=USAGE, **fields)

    def wait(self, call: Json, arguments: Json, text: str, kind: str = "approval") -> RunLog:
        return self._of(call, "waiting", kind=kind, arguments=arguments, text=text)

    def reply(self, *calls: str | WaitingCall) -> RunLog:
        """Here, the client of a stream replies to these calls."""
        named = tuple(WaitingCall(each) if isinstance(each, str) else each for each in calls)
        self.replies.append(Reply(len(self.entries), named))
        return self

    def decide(self, call: Json, decision: str, **fields: Any) -> RunLog:
        return self._of(call, "decided", decision=decision, **fields)

    def start(self, call: Json, arguments: Json) -> RunLog:
        return self._of(call, "tool_call_started", arguments=arguments)

    def settle(self, call: Json, text: str, error: str = "", **fields: Any) -> RunLog:
        """`error`: the kind of the failure. A call that was not started has had no attempt."""
        failure = {"kind": error, "message": text} if error else None
        started = any(each.type == "tool_call_started" and each.call_id == call["id"] for each in self.events)
        given: Json = {"attempts": int(started), **fields}
        return self._of(call, "tool_call_settled", result={"text": text, "error": failure}, **given)

    def run_below(self, call: Json, log: RunLog, text: str) -> RunLog:
        """The call has started a sub-agent, whose run has ended with the text."""
        self.below[call["id"]] = log
        run = {"id": log.run_id, "agent": log.agent, "status": "completed", "steps": log.step}
        return self.settle(call, text, run=run)

    def end(self, output: Any = None, status: str = "completed", error: Json | None = None) -> RunLog:
        """`output`: of a run with a result; a run that has failed, or was cancelled, has none."""
        has_result = status not in ("failed", "cancelled", "terminated", "timed_out")
        calls = sum(each.type == "tool_call_settled" for each in self.events)
        result = {"status": status, "output": output, "steps": self.step, "tool_calls": calls, "usage": USAGE}
        result["trace_id"] = "t"
        return self.store("run_ended", turn=1, status=status, result=result if has_result else None, error=error)

    def store(self, kind: str, /, **fields: Any) -> RunLog:
        """A stored event."""
        at = self.position
        event = EVENT.validate_python({"type": kind, "at": self._now(), "offset": at.next, **fields})
        live = (0, 0) if kind in ENDS_TEXT else at[1:]
        self.entries.append(FeedEvent(event, Position(at.next + 1, *live)))
        return self

    def report(self, call: Json, text: str, number: int = 1) -> RunLog:
        """A call reports its progress."""
        fields = {"step": self.step, "call_id": call["id"], "name": call["name"], "attempt": 1, "number": number}
        event = EVENT.validate_python({"type": "tool_progress", "at": self._now(), "text": text, **fields})
        self.entries.append(FeedEvent(event, self.position))
        return self

    def _of(self, call: Json, event_type: str, /, **fields: Any) -> RunLog:
        return self.store(event_type, step=self.step, call_id=call["id"], name=call["name"], **fields)

    def _now(self) -> datetime:
        return START + timedelta(seconds=len(self.entries))

    def _begin_attempt(self, attempt: int) -> None:
        self._attempt, self._written, self._parts = attempt, "", []

    def _open_part(self, call: LiveCall | None) -> None:
        self._written += PART_GAP
        place = self.step, self._attempt
        texts = [each for each in self.events if isinstance(each, TextDelta) and (each.step, each.attempt) == place]
        before = sum(len(each.text) for each in texts)
        self._parts.append(LivePart(at=len(self._written), start=0 if call else before, call=call))

    def _read(self) -> None:
        at = self.position
        place = {"conversation": "0", "step": self.step, "attempt": self._attempt, "start": 0}
        live = LiveText(**place, text=self._written, parts=self._parts)
        for event, seen in live_events(live, at.seen if at.attempt == self._attempt else 0, self.step, self._now()):
            self.entries.append(FeedEvent(event, Position(at.next, self._attempt, seen)))


def call(call_id: str, name: str, arguments: str) -> Json:
    """A call as a model makes it."""
    return {"id": call_id, "name": name, "arguments": arguments}


class _Feeds:
    """The feeds of runs that have been read to the end of their logs."""

    def __init__(self, log: RunLog) -> None:
        self._logs = {each.run_id: each for each in log.tree()}

    @asynccontextmanager
    async def reading(
        self, workflow_id: str, stream: StreamPosition, changed: asyncio.Event
    ) -> AsyncIterator[FeedReader]:
        log = self._logs[workflow_id]
        feed = EventFeed(cast(Any, None), workflow_id, None, cast(Any, None))
        feed.start = Position()
        for entry in log.entries:
            feed._keep(entry)
        feed.is_ended = log.is_ended
        feed.sub_runs = [
            {"call_id": call_id, "id": below.run_id, "agent": below.agent}
            for call_id, below in log.below.items()
            if not below.is_ended
        ]
        changed.set()
        yield FeedReader(feed, stream, changed)


class LoggedRuns:
    """What the doors read of a run, for a run that is as its log says. Nothing else happens in it."""

    def __init__(self, log: RunLog) -> None:
        self.log = log

    async def stored_events(self, caller: Caller, run_id: str, end: int = NO_END) -> AsyncIterator[Event]:
        for event in self.log.events:
            if getattr(event, "offset", end) < end:
                yield event

    async def watch(self, caller: Caller, run_id: str, since: str = "") -> AsyncIterator[WatchedEvent] | None:
        if self.log.is_ended and since and StreamPosition.parse(since).base.next >= self.log.position.next:
            return None
        return watch_run(cast(EventFeeds, _Feeds(self.log)), run_id, since)

    async def pending(self, caller: Caller, run_id: str) -> list[Json]:
        return [each for log in self.log.tree() for each in _pending(log)]


def _pending(log: RunLog) -> Iterator[Json]:
    view = RunView.of(log.events)
    for each in view.newest_step.calls.values() if view.newest_step and not view.end else ():
        if each.open_wait is not None:
            asked = each.open_wait.asked
            shown = {"call_id": each.id, "tool": each.name, "arguments": asked.arguments, "kind": asked.kind}
            yield {**shown, "text": asked.text, "since": asked.at.isoformat(), "id": log.run_id}


async def watched(log: RunLog, since: str = "") -> list[WatchedEvent]:
    """What a watcher of a run that has ended gets after a token."""
    stream = await LoggedRuns(log).watch(cast(Any, None), log.run_id, since)
    return [] if stream is None else [each async for each in stream]


def texts_of(events: Sequence[Event]) -> list[str]:
    """The texts of the answers of a run."""
    return [each.text for each in events if each.type == "answered" and each.text]


def calls_of(events: Sequence[Event], kinds: Collection[str]) -> list[str]:
    """The ids of calls that have events of these types."""
    return [each.call_id for each in events if each.type in kinds and hasattr(each, "call_id")]
