"""What a watcher of a run gets of the events that its process keeps: each once, and what it has of a text not again."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client import event_feed
from mulligan.client.event_feed import EventFeed, FeedEvent, FeedReader, is_temporary
from mulligan.client.event_position import Position, StreamPosition
from mulligan.client.first_reads import FirstReads
from mulligan.client.history_changes import HistoryChanges
from mulligan.wire.event_types import EVENT, Event, TextVoid

AT = datetime(2026, 11, 25, 12, tzinfo=UTC)


def event(kind: str, **fields: Any) -> Event:
    parsed: Event = EVENT.validate_python({"type": kind, "at": AT, "step": 1, **fields})
    return parsed


def stored(offset: int) -> FeedEvent:
    return FeedEvent(event("step_started", offset=offset, model="m"), Position(offset + 1))


def delta(text: str, start: int, attempt: int = 1, stored_before: int = 1) -> FeedEvent:
    """A part of a text, of which `start` characters were seen before."""
    part = event("text_delta", attempt=attempt, start=start, text=text)
    return FeedEvent(part, Position(stored_before, attempt, start + len(text)))


def progress(number: int, offset: int) -> FeedEvent:
    report = event("tool_progress", call_id="c", name="find", attempt=1, number=number, text=f"{number}")
    return FeedEvent(report, Position(offset))


def feed_of(*kept: FeedEvent, start: int = 0) -> EventFeed:
    feed = EventFeed(cast(Any, None), "run", 1.0, FirstReads())
    feed.start = Position(start)
    for each in kept:
        feed._keep(each)
    return feed


async def read(feed: EventFeed, token: str = "") -> list[tuple[Any, ...]]:
    """What a watcher gets that has read up to a token."""
    reader, got = FeedReader(feed, StreamPosition.parse(token), asyncio.Event()), list[tuple[Any, ...]]()
    while (each := await reader.next()) is not None:
        assert await reader.next() is each, "the same one until it was read"
        got.append((each.event.type, getattr(each.event, "start", None), getattr(each.event, "text", None)))
        reader.advance()
    return got


async def test_a_watcher_gets_what_comes_after_its_position() -> None:
    kept = stored(0), delta("Hel", 0), delta("lo", 3), stored(1)
    step, first, second = ("step_started", None, None), ("text_delta", 0, "Hel"), ("text_delta", 3, "lo")
    assert await read(feed_of(*kept)) == [step, first, second, step]
    assert await read(feed_of(*kept), "1") == [first, second, step]
    assert await read(feed_of(*kept), "1.1.3") == [second, step]
    assert await read(feed_of(*kept), "1.1.5") == [step]
    assert await read(feed_of(*kept), "2") == []


async def test_a_watcher_that_has_a_part_of_a_text_gets_the_rest() -> None:
    """Another process has cut the text elsewhere."""
    kept = stored(0), delta("Hello", 0), delta(" you", 5)
    assert await read(feed_of(*kept), "1.1.2") == [("text_delta", 2, "llo"), ("text_delta", 5, " you")]
    assert await read(feed_of(*kept), "1.1.7") == [("text_delta", 7, "ou")]


async def test_the_text_of_an_earlier_attempt_is_void_before_that_of_the_next() -> None:
    reader = FeedReader(
        feed_of(stored(0), delta("Other", 0, attempt=2)), StreamPosition.parse("1.1.4"), asyncio.Event()
    )
    void = await reader.next()
    assert void is not None
    assert void.event == TextVoid(at=AT, step=1, attempt=1)
    assert void.position == Position(1, 2, 0)
    reader.advance()
    following = await reader.next()
    assert following is not None
    assert getattr(following.event, "text", None) == "Other"
    reader.advance()
    assert (await reader.next(), reader.stream.token) == (None, "1.2.5")


async def test_reports_have_the_position_of_the_event_before_them_and_are_read_once() -> None:
    kept = stored(0), progress(1, 1), progress(2, 1)
    report = [("tool_progress", None, "1"), ("tool_progress", None, "2")]
    assert (await read(feed_of(*kept)))[1:] == report
    assert await read(feed_of(*kept), "1") == report
    assert await read(feed_of(*kept), "1~c=1.1") == report[1:]
    assert await read(feed_of(*kept), "1~c=1.2") == []


async def test_a_feed_keeps_so_many_events_and_knows_where_they_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "MOST_KEPT", 3)
    feed = feed_of(*(stored(offset) for offset in range(5)))
    assert (feed.first, feed.end, feed.start) == (2, 5, Position(2))
    assert [feed.get(number).position.next for number in range(2, 5)] == [3, 4, 5]
    assert len(await read(feed, "3")) == 2


async def test_a_feed_keeps_so_many_bytes_but_always_the_newest_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "MOST_KEPT_BYTES", 2_000)
    feed = feed_of(stored(0), delta("x" * 5_000, 0))
    assert (feed.first, feed.end, feed.start) == (1, 2, Position(1))
    feed._keep(stored(1))
    assert (feed.first, feed.end) == (2, 3)
    feed._keep(stored(2))
    assert (feed.first, feed.end) == (2, 4)


async def test_a_watcher_is_at_the_end_when_it_has_read_all_of_a_closed_run() -> None:
    feed = feed_of(stored(0))
    changed = asyncio.Event()
    reader = FeedReader(feed, StreamPosition.parse(""), changed)
    feed.readers.add(reader)
    assert await reader.next() is not None
    reader.advance()
    assert (await reader.next(), reader.is_at_end) == (None, False)
    feed.is_ended = True
    assert reader.is_at_end
    feed._keep(stored(1))
    assert (changed.is_set(), reader.is_at_end) == (True, False)


async def test_nothing_is_read_before_the_feed_knows_where_it_begins() -> None:
    feed = EventFeed(cast(Any, None), "run", 1.0, FirstReads())
    assert await read(feed) == []


@pytest.mark.parametrize(
    ("error", "temporary"),
    [
        (RPCError("", RPCStatusCode.UNAVAILABLE, b""), True),
        (RPCError("", RPCStatusCode.DEADLINE_EXCEEDED, b""), True),
        (RPCError("", RPCStatusCode.NOT_FOUND, b""), False),
        (RPCError("", RPCStatusCode.PERMISSION_DENIED, b""), False),
        (ValueError(), False),
    ],
)
def test_a_run_that_is_not_there_will_not_be_there_later(error: Exception, temporary: bool) -> None:
    assert is_temporary(error) is temporary


async def test_a_long_poll_that_nobody_waits_for_is_ended() -> None:
    changes = HistoryChanges(cast(Any, None), "run")
    changes.stop()
    changes._task = asyncio.create_task(asyncio.sleep(600))
    changes.stop()
    await asyncio.wait([changes._task])
    assert changes._task.cancelled()
