"""Streamed text in heartbeats: bounded, in whole characters, with its start; and the heartbeats of tools."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from mulligan.activities import heartbeat
from mulligan.activities.heartbeat import Heartbeat, heartbeating
from mulligan.activities.models.live_text import FIRST_AFTER, MAX_BYTES, LiveTextHeartbeats
from mulligan.client.live_pace import LivePace
from mulligan.wire.event_types import LIVE_TEXT, LiveText


async def heartbeats_of(body: Any) -> list[tuple[Any, ...]]:
    """The details of each heartbeat of an activity."""
    beats: list[tuple[Any, ...]] = []
    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *details: beats.append(details)

    async def activity() -> None:
        async with heartbeating() as heart:
            await body(heart)

    await environment.run(activity)
    return beats


def texts(beats: list[tuple[Any, ...]]) -> list[LiveText]:
    return [LiveText.model_validate(beat[-1][LIVE_TEXT]) for beat in beats]


async def test_text_between_two_heartbeats_is_sent_as_one_piece() -> None:
    """The first heartbeat is sent some time after the first word."""

    async def body(heart: Heartbeat) -> None:
        text = LiveTextHeartbeats(heart, LivePace(0.01), "0", 3, 2)
        for words in (("Once ", "upon "), ("a ", "time.")):
            for word in words:
                text.write(word)
            await asyncio.sleep(0.1)

    told = texts(await heartbeats_of(body))
    assert [(each.text, each.start, each.step, each.attempt) for each in told] == [
        ("Once upon ", 0, 3, 2),
        ("Once upon a time.", 0, 3, 2),
    ]


async def test_the_first_heartbeat_does_not_wait_for_the_interval() -> None:
    """A person sees soon that an answer begins; the following pieces come at the interval."""

    async def body(heart: Heartbeat) -> None:
        text = LiveTextHeartbeats(heart, LivePace(600), "0", 1, 1)
        text.write("Once ")
        while not heart._live:
            await asyncio.sleep(0.01)
        text.write("upon a time.")
        await asyncio.sleep(FIRST_AFTER * 2)

    assert [each.text for each in texts(await heartbeats_of(body))] == ["Once "]


async def test_only_the_end_of_a_long_text_is_in_the_heartbeat() -> None:
    """A limited number of bytes in whole characters, and the number of characters before them."""

    async def body(heart: Heartbeat) -> None:
        text = LiveTextHeartbeats(heart, LivePace(0.01), "0", 1, 1)
        for _ in range(3):
            text.write("日本語🙈 " * 2_000)
            await asyncio.sleep(0.05)

    told = texts(await heartbeats_of(body))
    whole = "日本語🙈 " * 6_000
    assert len(told[-1].text.encode()) <= MAX_BYTES
    assert len(told[-1].text.encode()) > MAX_BYTES - 4
    assert whole[told[-1].start :] == told[-1].text


async def test_half_of_a_surrogate_pair_waits_for_the_other_half() -> None:
    """JSON can split a pair; an invalid half is replaced."""

    async def body(heart: Heartbeat) -> None:
        text = LiveTextHeartbeats(heart, LivePace(0.01), "0", 1, 1)
        for piece in ("a\ud83d", "\ude48b", "\ude48\0"):
            text.write(piece)
            await asyncio.sleep(0.05)

    told = texts(await heartbeats_of(body))
    assert [each.text for each in told] == ["a", "a🙈b", "a🙈b\ufffd\ufffd"]


async def test_the_retry_details_stay_first_in_the_heartbeat_beside_the_text() -> None:
    """After a failure the text is still there for watchers."""
    with pytest.raises(ZeroDivisionError):
        await heartbeats_of_failure()


async def heartbeats_of_failure() -> None:
    beats: list[tuple[Any, ...]] = []
    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *details: beats.append(details)

    async def activity() -> None:
        async with heartbeating() as heart:
            LiveTextHeartbeats(heart, LivePace(0.01), "0", 1, 1).write("Once")
            await asyncio.sleep(0.05)
            heart.send_details(17.0, 1)
            raise ZeroDivisionError

    try:
        await environment.run(activity)
    finally:
        assert beats[-1][:2] == (17.0, 1)
        assert beats[-1][2][LIVE_TEXT]["text"] == "Once"
        again = ActivityEnvironment()
        again.info = again.info.__class__(**{**again.info.__dict__, "heartbeat_details": list(beats[-1])})

        async def next_attempt() -> tuple[Any, ...]:
            return Heartbeat().details

        assert await again.run(next_attempt) == (17.0, 1)


async def test_no_heartbeat_is_sent_after_the_activity_has_ended() -> None:
    """Text that is pending at the end is not sent."""

    written: list[LiveTextHeartbeats] = []

    async def body(heart: Heartbeat) -> None:
        written.append(LiveTextHeartbeats(heart, LivePace(0.05), "0", 1, 1))
        written[0].write("Once")

    beats = await heartbeats_of(body)
    timer = written[0]._timer
    assert timer is not None
    assert timer.cancelled()
    await asyncio.sleep(0.1)
    assert beats == []


async def test_frequent_progress_of_a_tool_sends_one_heartbeat_in_three_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The newest progress is not lost."""
    now = 100.0

    async def body(heart: Heartbeat) -> None:
        nonlocal now
        monkeypatch.setattr(heart._loop, "time", lambda: now)
        for number in range(12):
            now += 0.5
            heart.send_details(number)
        monkeypatch.undo()
        assert heart.details == (11,)

    assert heartbeat.INTERVAL == 1.5
    assert await heartbeats_of(body) == [(0,), (3,), (6,), (9,)]
