"""Follows the events of a run. Those that its workflow stores come from a query; the text that a model is writing comes
from the heartbeats of the model call, or of the poll that reads a background response.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError

from mulligan.client.event_position import Position, StreamPosition
from mulligan.client.heartbeat_details import heartbeat_details
from mulligan.client.history_changes import HistoryChanges
from mulligan.client.live_channel import watching
from mulligan.client.live_pace import FASTEST, LivePace
from mulligan.client.live_reader import LiveReader
from mulligan.client.read_run import NO_WORKER_STATUSES, chain_pages, query_of_chain, query_run, wait_for_end
from mulligan.features import all_words
from mulligan.live.subscriptions import Subscription
from mulligan.schema.cut_text import beginning
from mulligan.values import ErrorInfo, RunResult
from mulligan.wire.event_types import (
    EVENT,
    EVENT_TYPES,
    EVENTS_QUERY,
    INTERNAL_DETAILS,
    TOOL_PROGRESS,
    Event,
    ProgressMark,
    RunEnded,
    ToolProgress,
)
from mulligan.wire.live_frames import CallPlace
from mulligan.wire.live_text_in import live_text_in
from mulligan.wire.model_call import CALL_MODEL
from mulligan.wire.run_status import status_in_temporal
from mulligan.wire.tool_call import CALL_TOOL

_PAGE = 200
_MAX_WAIT, _MAX_WAIT_FOR_TEXT, _MAX_WAIT_FOR_PROGRESS = 60.0, 2.0, 5.0
"""Seconds between two checks of a run in which nothing happens; shorter during a call, as no history event shows
that a model begins to write, or that a tool reports its progress."""
MOST_REPORT_CHARS = 2_000
"""Characters of a call's progress in an event."""
_WITH_LIVE_TEXT = {CALL_MODEL, *all_words().model_calls}
"""The activities that report what a model writes."""
_PACE = LivePace(0.5, FASTEST)
"""Of all followers of this process that have no pace of their own."""
_COVERED = 2.0
"""Seconds for each request of a check, while the live channel says what happens."""
_NEWS_WAITS = 0.02
"""Seconds that news of a run waits for the model call that it is about."""


def follow(
    client: Client, workflow_id: str, *, since: str = "", every: float | None = None, conversation: str | None = None
) -> AsyncIterator[Event]:
    """Yield each event of a run until it is closed, from the beginning or after the event with the token `since`.

    A run that continued as new is one run here. Events of types that only newer versions know are skipped. A closed run can
    be read as long as Temporal retains it. While no worker answers, it waits.

    Args:
        client: A client of the run's namespace.
        workflow_id: The run's workflow id.
        since: The `token` of the last event that was read; empty: from the beginning.
        every: Seconds between two checks while something happens. Otherwise it checks less often, and Temporal's long
            poll wakes it. None: 0.1 to 0.5, the longer the more models are writing for the followers of this process; 0.5
            on Temporal Cloud.
        conversation: The number of the agent, in a workflow with several. None: the first.

    Raises:
        EventTokenError: `since` is not a token.
        temporalio.service.RPCError: there is no such run, or Temporal does not answer.
        temporalio.client.WorkflowQueryFailedError: the workflow has no query `events` (docs/events.md).
    """
    return EventFollower(client, workflow_id, since, every, conversation).events()


@dataclass
class _Look:
    """A check of a run. `requests`: how many it took. `is_read`: whether the stored events were read. `has_changed`: whether
    there was anything new.
    """

    run: WorkflowExecutionDescription
    calls: list[PendingActivityInfo]
    requests: int
    is_read: bool
    has_changed: bool

    @property
    def may_report(self) -> bool:
        """Whether a tool call runs, which may report its progress."""
        return any(each.activity_type.name == CALL_TOOL for each in self.run.raw_description.pending_activities)


class EventFollower:
    """Reads the events of one run, after the one with the token `since`."""

    def __init__(
        self, client: Client, workflow_id: str, since: str, every: float | None, conversation: str | None = None
    ) -> None:
        self._stream = StreamPosition.parse(since)
        self._client = client
        self._handle = client.get_workflow_handle(workflow_id)
        self._pace = _PACE if every is None else LivePace(every)
        self._conversation = [] if conversation is None else [conversation]
        """The last argument of the queries, if there is one."""
        self._reader = LiveReader(conversation)
        self._wait = self._pace.seconds
        """Seconds until the next check, unless the live channel says what happens."""
        self.total = self.steps = 0
        """The number of stored events, and of steps, at the last query."""
        self.sub_runs: list[dict[str, Any]] = []
        """The runs of sub-agents that are open, at the last query: {`call_id`, `id`, `run_id`, `agent`}."""
        self.page_size = _PAGE
        """Events of one query."""
        self.on_query: Callable[[], None] = lambda: None
        """Called after each query of the newest workflow run."""
        self.seconds_between_texts: Callable[[], float] = lambda: 0.0
        """How long what the live channel brings is joined before it is yielded."""
        self._is_ended = False

    @property
    def token(self) -> str:
        """The token of the event that was yielded last."""
        return self._stream.token

    @property
    def position(self) -> Position:
        """The position of the reader, after the event that was yielded last."""
        return self._stream.base

    async def events(self) -> AsyncIterator[Event]:
        """Yield all events until the run is closed."""
        checked: tuple[str, int] | None = None
        changes = HistoryChanges(self._client, self._handle.id)
        with ExitStack() as stack, ExitStack() as counted:
            stack.callback(changes.stop)
            channel = stack.enter_context(watching(self._handle.id, self._reader))
            while True:
                self._reader.asks_for_run()
                run = await self._handle.describe()
                self._reader.take_run(run.run_id)
                is_open = run.status == WorkflowExecutionStatus.RUNNING
                now = run.run_id, run.history_length
                changed = now != checked
                if changed:
                    try:
                        async for event in self.stored_events():
                            yield event
                        checked = now
                    except RPCError as error:
                        if not is_open or error.status not in NO_WORKER_STATUSES:
                            raise
                if not is_open:
                    if not await self.end_was_yielded():
                        yield await self.end_event(run)
                    return
                counted.close()
                look = _Look(
                    run, self._model_calls(run), requests=1 + changed, is_read=checked == now, has_changed=changed
                )
                if look.calls and not self._is_covered(look):
                    counted.enter_context(self._pace.counted(self._client))
                async for event in self._unstored(look):
                    look.has_changed = True
                    yield event
                self._wait = self._pace.seconds if look.has_changed else min(self._wait * 1.5, self._longest_wait(look))
                async for event in self._until_next_look(look, channel, changes):
                    yield event

    async def _unstored(self, look: _Look) -> AsyncIterator[Event]:
        """What is new in heartbeats."""
        if look.is_read:
            await self._take_heartbeats(look)
        for event in self._written():
            look.has_changed = True
            yield event
        if not look.has_changed:  # else a call may have been settled since the run was described
            async for event in self._progress(look.run):
                yield event

    def _longest_wait(self, look: _Look) -> float:
        """Seconds until the next check of a run in which nothing happens."""
        if look.calls:
            longest = self._pace.up_to(_MAX_WAIT_FOR_TEXT)
        else:
            longest = _MAX_WAIT_FOR_PROGRESS if look.may_report else _MAX_WAIT
        return max(self._pace.seconds, longest)

    async def _until_next_look(
        self, look: _Look, channel: Subscription, changes: HistoryChanges
    ) -> AsyncIterator[Event]:
        """What the live channel brings until it is time to look at the run again."""
        reader, clock = self._reader, asyncio.get_running_loop().time
        began = clock()
        news_due = text_due = 0.0
        while not reader.needs_run:
            channel.changed.clear()
            now = clock()
            if now >= text_due:
                for event in self._written():
                    text_due = now + self.seconds_between_texts()
                    yield event
            # The model call that news is about is heard of a moment later: one query answers for both.
            news_due = (news_due or now + _NEWS_WAITS) if reader.has_news else 0.0
            if reader.needs_query or 0.0 < news_due <= now:
                news_due = 0.0
                try:
                    async for event in self.stored_events():
                        self._wait = self._pace.seconds
                        yield event
                except RPCError as error:
                    if error.status not in NO_WORKER_STATUSES:
                        raise
                    await asyncio.sleep(self._pace.seconds)
                    return
                if self._is_ended:  # it may be closed
                    return
                continue
            is_covered = self._is_covered(look)
            until = began + (max(self._wait, _COVERED * look.requests) if is_covered else self._wait)
            if now >= until:
                return
            times = [until, *([reader.leased_until] if is_covered and reader.writing else ())]
            due = [each for each in (news_due, text_due) if each > now]
            is_quiet = self._wait > _MAX_WAIT_FOR_TEXT
            # The long poll reads the history once, so it is used only if nothing happens.
            if await changes.wait(look.run, min(*times, *due, until) - now, channel.changed, long_poll=is_quiet):
                return

    def _is_covered(self, look: _Look) -> bool:
        """Whether the live channel says what happens, so that it is enough to look now and then."""
        if self._is_ended or (self._reader.writing is None and look.may_report):
            return False
        return self._reader.is_covered(asyncio.get_running_loop().time())

    async def stored_events(self, until: int | None = None, step: int | None = None) -> AsyncIterator[Event]:
        """The stored events from the position on, those that are there now, or only those before the offset `until`, or
        of one step with what follows it. Events before a compaction come from earlier workflow runs of the chain.

        Raises:
            RPCError: Temporal, or a worker of the run, does not answer.
        """
        if until is not None and until <= self.position.next:
            return
        selected: list[Any] = [*self._conversation]
        if step is not None:
            selected = [*(selected or [None]), step]
        asked = self._reader.asks()
        query = query_of_chain(self._client, self._handle, *selected)
        start, size = self.position.next, self.page_size
        async for page in chain_pages(query, EVENTS_QUERY, start, end=until, size=size):
            if (answer := page.answer) is None:
                self._stream.base = Position(page.end or start)  # its retention is over
                continue
            if page.run_id is None:
                self._reader.take_query(answer.get("writing"), asked)
                self.total, self.steps = answer["total"], answer.get("steps") or 0
                self.sub_runs = answer.get("sub_runs", [])
                self.on_query()
            for event in answer["events"]:
                if (parsed := self._parse(event)) is not None:
                    yield parsed

    def _parse(self, stored: dict[str, Any]) -> Event | None:
        """The typed event; None if this version does not know its type."""
        is_end_of_text = stored["type"] in ("step_started", "answered", "model_fallback", "run_ended")
        base = Position(stored["offset"] + 1, *((0, 0) if is_end_of_text else self.position[1:]))
        if stored["type"] not in EVENT_TYPES:
            self._stream.base = base
            return None
        try:
            event = EVENT.validate_python(stored)
        except ValidationError:  # another version's form of it
            self._stream.base = base
            return None
        self._is_ended = event.type == "run_ended"
        return self._passed(event, base)

    def _passed(self, event: Event, base: Position) -> Event:
        """The event with its token."""
        self._stream.pass_event(event, base)
        event.token = self._stream.token
        return event

    def _model_calls(self, run: WorkflowExecutionDescription) -> list[PendingActivityInfo]:
        """The pending activities of a running model call, or of a poll of its response, if Temporal shows it already."""
        return [
            activity
            for activity in run.raw_description.pending_activities
            if activity.activity_type.name in _WITH_LIVE_TEXT and self._reader.may_be_open(_milliseconds(activity))
        ]

    async def _take_heartbeats(self, look: _Look) -> None:
        """Read what the model has written by the last heartbeats."""
        if (writing := self._reader.writing) is None:
            return
        for call in look.calls:
            text = live_text_in(await heartbeat_details(self._client, call))
            # Without a text nobody knows of which agent it is, if the workflow has several.
            if (text is None and len(look.calls) > 1) or (text and text.conversation != writing["conversation"]):
                continue
            # The workflow counts the attempts of a background response; Temporal counts the attempts of other calls.
            place = CallPlace(
                workflow=self._handle.id,
                run=look.run.run_id,
                scheduled=_milliseconds(call),
                attempt=writing.get("attempt") or call.attempt,
                conversation=writing["conversation"],
                step=writing["step"],
            )
            self._reader.take_heartbeat(place, text, call.last_heartbeat_time.ToDatetime(tzinfo=UTC))

    def _written(self) -> Iterator[Event]:
        """What the model has written since the last check, whoever told of it."""
        for event, position in self._reader.unseen(self.position):
            yield self._passed(event, position)

    async def _progress(self, run: WorkflowExecutionDescription) -> AsyncIterator[Event]:
        """Return what running calls have reported since the last check."""
        for activity in run.raw_description.pending_activities:
            if activity.activity_type.name != CALL_TOOL or not activity.HasField("heartbeat_details"):
                continue
            details = await heartbeat_details(self._client, activity)
            report = _report(details, activity.last_heartbeat_time.ToDatetime(tzinfo=UTC))
            if report is not None and report.attempt == activity.attempt and self._stream.is_new(report):
                yield self._passed(report, self.position)

    async def end_was_yielded(self) -> bool:
        """Whether the event `run_ended` was yielded, now or before the token that this reader began with."""
        if self._is_ended or self.position.next > self.total:
            return True
        if not self.total:
            return False
        page = await query_run(self._handle, EVENTS_QUERY, self.total - 1, 1, *self._conversation)
        return bool(page["events"][0]["type"] == "run_ended")

    async def end_event(self, run: WorkflowExecutionDescription) -> Event:
        """The event `run_ended` for a run that stored none: it was terminated, timed out, or failed before it began."""
        end = await wait_for_end(self._handle)
        status = status_in_temporal(run.status.name) if run.status else "failed"
        error = ErrorInfo(kind=end.error["kind"], message=end.error["message"]) if end.error else None
        result = RunResult.model_validate(end.result) if end.result and "usage" in end.result else None
        fields = {"at": run.close_time or run.start_time, "offset": self.total, "turn": 1}
        end_event = RunEnded(**fields, status=status, error=error, result=result)
        return self._passed(end_event, Position(self.total + 1))


def _milliseconds(activity: PendingActivityInfo) -> int:
    return activity.scheduled_time.ToMilliseconds()


def _report(details: Sequence[Any], at: datetime) -> ToolProgress | None:
    """The progress in the details of a heartbeat."""
    marks = [each[TOOL_PROGRESS] for each in details if isinstance(each, dict) and TOOL_PROGRESS in each]
    reported = [each for each in details if not (isinstance(each, dict) and INTERNAL_DETAILS & each.keys())]
    if not marks or not reported:
        return None
    try:
        mark = ProgressMark.model_validate(marks[0])
    except ValidationError:
        return None
    last = reported[-1]
    text = last if isinstance(last, str) else json.dumps(last, ensure_ascii=False, default=str)
    return ToolProgress(**mark.model_dump(), at=at, text=beginning(text, MOST_REPORT_CHARS))


@dataclass(frozen=True)
class StoredEvents:
    """A page of stored events. `next`: the token after it. `is_ended`: the run is closed, and these are the last."""

    events: list[Event]
    next: str
    is_ended: bool


async def read_event_page(client: Client, workflow_id: str, since: str, limit: int) -> StoredEvents:
    """Read at most `limit` stored events after the event with the token `since`.

    Raises:
        EventTokenError: `since` is not a token.
        temporalio.service.RPCError: there is no such run, or no worker answers.
        temporalio.client.WorkflowQueryFailedError: the workflow has no query `events`.
    """
    run = await client.get_workflow_handle(workflow_id).describe()
    follower = EventFollower(client, workflow_id, since, 1)
    page = [event async for event in follower.stored_events(follower.position.next + limit)]
    is_last = run.status != WorkflowExecutionStatus.RUNNING and follower.position.next >= follower.total
    if is_last and not await follower.end_was_yielded():
        page.append(await follower.end_event(run))
    return StoredEvents(page, follower.token, is_last)


async def newest_offset(client: Client, workflow_id: str) -> int:
    """The number of stored events of a run.

    Raises:
        temporalio.service.RPCError: there is no such run, or no worker answers.
    """
    page = await query_run(client.get_workflow_handle(workflow_id), EVENTS_QUERY, 0, 1)
    return int(page["total"])
