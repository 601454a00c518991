"""What a model writes reaches a watcher by the live channel, on a real server; without it by heartbeats, as before."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from mulligan import events
from mulligan.client.follow_events import EventFollower
from mulligan.devserver import DevServer
from mulligan.live.subscriptions import Subscriptions
from mulligan.wire.live_frames import CallOpen, WorkerFrame
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Failure, Turn
from tests.support.temporal import environment_of
from tests.support.worker_process import worker_process

LONG = "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals. " * 2
SELDOM = {"MULLIGAN_LIVE_TEXT_SECONDS": "60"}
"""The first heartbeat has the first words, and no other has any: what follows can only come by the channel."""


@asynccontextmanager
async def lab_with(lab: Lab, monkeypatch: pytest.MonkeyPatch, **environment: str) -> AsyncIterator[Lab]:
    """A worker of its own, with these settings."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    queue = f"words-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load(["tests.support.shop_agents"]), lab.telemetry, queue):
        yield Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)


async def watched(lab: Lab, run_id: str, on_text: Any = None) -> list[events.Event]:
    found = []
    async for event in events.follow(lab.client, run_id):
        found.append(event)
        if on_text is not None and isinstance(event, events.TextDelta):
            on_text(event)
    return found


def words(found: list[events.Event]) -> str:
    """The text as it came, in the order of its places."""
    deltas = [event for event in found if isinstance(event, events.TextDelta)]
    assert all(after.start == before.start + len(before.text) for before, after in pairwise(deltas))
    return "".join(event.text for event in deltas)


async def test_all_words_come_by_the_channel_before_the_answer(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to one that comes late; the events are those that a reader has afterwards."""
    last = asyncio.Event()
    async with lab_with(lab, monkeypatch, **SELDOM) as at:
        handle = await at.start([call("click", '{"element": "#go"}', "c"), Turn(LONG, gates={40: last}, pace=0.005)])
        written = ""

        def take(event: events.TextDelta) -> None:
            nonlocal written
            written += event.text
            if len(written) > len(LONG) / 2:
                begun.set()

        begun = asyncio.Event()
        watching = asyncio.create_task(watched(at, handle.id, take))
        await begun.wait()
        late_words = ""
        async for event in events.follow(lab.client, handle.id):
            if isinstance(event, events.TextDelta):
                late_words += event.text
                if late_words == written:
                    break
        last.set()
        found = await watching
        assert LONG.startswith(late_words)
        assert len(late_words) > len(LONG) / 2
        assert len(words(found)) > len(LONG) * 0.8
        stored = [event for event in found if not event.type.startswith(("text_", "tool_input"))]
        late = [event for event in await watched(at, handle.id) if not event.type.startswith(("text_", "tool_input"))]
        assert [(event.type, event.token) for event in stored] == [(event.type, event.token) for event in late]


async def test_without_the_channel_words_come_by_heartbeats(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    last = asyncio.Event()
    async with lab_with(lab, monkeypatch, MULLIGAN_LIVE="off", MULLIGAN_LIVE_TEXT_SECONDS="0.1") as at:
        handle = await at.start([Turn(LONG, gates={30: last}, pace=0.01)])
        found = await watched(at, handle.id, lambda _: last.set())
    assert words(found)
    assert LONG.startswith(words(found))
    assert found[-1].type == "run_ended"


async def test_a_watched_run_is_looked_at_seldom_while_the_channel_tells_of_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the model writes for four seconds: two looks, one query for each call that begins or ends."""
    looks, queries = 0, 0
    unstored, stored = EventFollower._unstored, EventFollower.stored_events

    def count_look(self: EventFollower, *given: Any) -> Any:
        nonlocal looks
        looks += 1
        return unstored(self, *given)

    def count_query(self: EventFollower, *given: Any) -> Any:
        nonlocal queries
        queries += 1
        return stored(self, *given)

    async with lab_with(lab, monkeypatch, **SELDOM) as at:
        handle = await at.start([Turn(LONG, pace=0.06)])
        follower = EventFollower(lab.client, handle.id, "", None)
        monkeypatch.setattr(EventFollower, "_unstored", count_look)
        monkeypatch.setattr(EventFollower, "stored_events", count_query)
        begun = asyncio.get_running_loop().time()
        text = "".join([event.text async for event in follower.events() if isinstance(event, events.TextDelta)])
        seconds = asyncio.get_running_loop().time() - begun
    assert len(text) > len(LONG) * 0.9
    assert looks <= 8 + seconds
    assert queries <= 8 + seconds


async def test_text_of_a_killed_worker_is_void_once_and_that_of_the_next_comes_from_its_start(
    lab: Lab, temporal: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen worker that wakes says nothing that anybody sees."""
    queue = f"dies-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    handle = await at.start([Turn(LONG * 3, pace=0.05), DONE])
    environment = {**environment_of(temporal), **SELDOM}
    found: list[events.Event] = []
    begun = asyncio.Event()

    def take(event: events.TextDelta) -> None:
        found.append(event)
        if len([each for each in found if isinstance(each, events.TextDelta)]) > 5:
            begun.set()

    watching = asyncio.create_task(watched(at, handle.id, take))
    async with worker_process("tests.support.shop_agents", queue, temporal, **environment) as first:
        await begun.wait()
        os.kill(first.pid, signal.SIGSTOP)
        async with worker_process("tests.support.shop_agents", queue, temporal, **environment):
            while not any(isinstance(each, events.TextDelta) and each.attempt == 2 for each in found):
                await asyncio.sleep(0.05)
            os.kill(first.pid, signal.SIGCONT)
            all_found = await watching
    voids = [event for event in all_found if isinstance(event, events.TextVoid)]
    assert [void.attempt for void in voids] == [1]
    place = all_found.index(voids[0])
    assert LONG.startswith(words(all_found[:place]))
    again = words(all_found[place:])
    assert (LONG * 3).startswith(again)
    assert len(again) > len(LONG)


async def test_a_call_is_described_with_the_time_that_its_frames_name(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a heartbeat and a frame are known to be of one attempt, also of a later one."""
    frames: list[WorkerFrame] = []
    take = Subscriptions.take

    def keep(self: Subscriptions, frame: WorkerFrame, link: Any) -> None:
        frames.append(frame)
        take(self, frame, link)

    monkeypatch.setattr(Subscriptions, "take", keep)
    last, described = asyncio.Event(), []
    async with lab_with(lab, monkeypatch, MULLIGAN_LIVE_TEXT_SECONDS="0.1") as at:
        handle = await at.start([Turn(LONG, gates={20: last}, fail_first=[Failure()])])
        async for event in events.follow(lab.client, handle.id):
            if isinstance(event, events.TextDelta) and not last.is_set():
                [pending] = (await handle.describe()).raw_description.pending_activities
                described = [(pending.attempt, pending.scheduled_time.ToMilliseconds())]
                last.set()
    told = [frame.place for frame in frames if isinstance(frame, CallOpen)]
    assert described == [(2, told[-1].scheduled)]
    assert told[-1].attempt == 2
