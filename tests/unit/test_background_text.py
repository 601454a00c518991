"""One poll that reads the text of a background response: where it begins, when it stops, and what it sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from mulligan.activities.background import background_text
from mulligan.activities.background.background_text import BackgroundText, ReadText
from mulligan.activities.heartbeat import heartbeating
from mulligan.activities.models.openai.openai_responses import OpenAIResponses
from mulligan.activities.models.protocol import CreatedResponse, Request
from mulligan.client.live_pace import LivePace
from mulligan.wire.agent_facts import Definition
from mulligan.wire.background import ReadResponse
from mulligan.wire.event_types import LIVE_TEXT, LiveText, TextCursor
from tests.support.openai_server import Turn
from tests.support.provider_fixtures import GO, Bench
from tests.support.reset_requests import ResetRequests

STORY = "It was a dark and stormy night, once upon a time."
PIECES = [STORY[start : start + 7] for start in range(0, len(STORY), 7)]
"""The events from number 5 on."""
START = TextCursor(sequence=0)


class RepeatingServer(OpenAIResponses):
    """As if the server sent all events, whatever is asked."""

    def background_events(self, response_id: str, after: int, timeout: float) -> Any:
        return super().background_events(response_id, -1, timeout)


class ServerWithoutStreams(OpenAIResponses):
    """As if the server ignored `stream`."""

    def background_events(self, response_id: str, after: int, timeout: float) -> Any:
        return self._client.events("get", f"/responses/{response_id}", timeout)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(background_text, "PAUSE", 1.0)
    async with Bench.open(monkeypatch) as bench:
        yield bench


async def create(bench: Bench, **gates: asyncio.Event) -> CreatedResponse:
    """A response whose stream waits before the events `e8`, … ."""
    bench.server.script("m", [Turn(STORY, gates={int(name[1:]): gate for name, gate in gates.items()})])
    provider = OpenAIResponses(bench.client)
    items = provider.encode(GO)
    request = Request(model="m", definition=Definition(instructions="", tools=[]), items=items, messages=[GO])
    return await provider.start_in_background(request, key="k", metadata={}, streamed=True)


async def poll(
    bench: Bench, cursor: TextCursor, *details: dict[str, Any], kind: type[OpenAIResponses] = OpenAIResponses
) -> tuple[ReadText, list[LiveText]]:
    """One poll, after an attempt that has sent `details`; and the texts that it sends."""
    beats: list[LiveText] = []
    environment = ActivityEnvironment(cast("Client", ResetRequests()))
    environment.info = replace(environment.info, heartbeat_details=details, attempt=2 if details else 1)

    def note(*sent: Any) -> None:
        beats.extend(LiveText.model_validate(each[LIVE_TEXT]) for each in sent if LIVE_TEXT in each)

    environment.on_heartbeat = note
    [stored] = bench.server.background.of("m")
    request = ReadResponse.model_validate(
        {
            "where": {"agent": "a", "trace": "t"},
            "conversation": {"count": 1, "digest": "d"},
            "model": "openai:m",
            "definition": "d",
            "step": 3,
            "id": stored.id,
            "attempt": 2,
            "started": 0,
        }
    )

    async def activity() -> ReadText:
        async with heartbeating() as heartbeat:
            return await BackgroundText(request, cursor, heartbeat, LivePace(0.02)).read(kind(bench.client))

    return await environment.run(activity), beats


async def test_the_creation_reads_one_event_and_closes_the_connection(bench: Bench) -> None:
    created = await create(bench, e8=asyncio.Event())
    [stored] = bench.server.background.of("m")
    assert (created.response["id"], created.sequence) == (stored.id, 0)
    assert stored.request["stream"] is True
    [request] = bench.server.requests
    await asyncio.wait_for(request.done.wait(), 60)
    assert request.disconnected


async def test_a_poll_stops_when_the_model_pauses_and_the_next_one_continues(bench: Bench) -> None:
    gate = asyncio.Event()
    await create(bench, e8=gate)
    read, texts = await poll(bench, START)
    assert read == ReadText(TextCursor(sequence=7, length=21, message=0), is_writing=False)
    assert (texts[-1].text, texts[-1].start, texts[-1].step, texts[-1].attempt) == ("".join(PIECES[:3]), 0, 3, 2)
    assert texts[-1].cursor == read.cursor
    gate.set()
    assert read.cursor is not None
    again, texts = await poll(bench, read.cursor)
    assert again.cursor is not None
    assert (again.cursor.length, again.is_writing) == (len(STORY), False)
    assert [(text.text, text.start) for text in texts[-1:]] == [("".join(PIECES[3:]), 21)]
    assert bench.server.background.of("m")[0].streams == [0, 7]


async def test_a_poll_stops_after_its_longest_time_though_the_model_writes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, because the next poll follows soon then."""
    monkeypatch.setattr(background_text, "LONGEST", 0.3)
    await create(bench, e8=asyncio.Event())
    read, texts = await poll(bench, START)
    assert (read.is_writing, read.cursor and read.cursor.sequence, texts[-1].text) == (True, 7, "".join(PIECES[:3]))


async def test_the_attempt_after_a_workers_death_continues_after_the_text_that_was_sent(bench: Bench) -> None:
    """Not where the poll began. It sends the text before that with the new one, for followers who have not seen it."""
    await create(bench)
    cursor = TextCursor(sequence=6, length=14, message=0)
    sent = LiveText(conversation="0", step=3, attempt=2, start=0, text="".join(PIECES[:2]), cursor=cursor)
    read, texts = await poll(bench, START, {LIVE_TEXT: sent.model_dump()})
    assert bench.server.background.of("m")[0].streams == [6]
    assert (texts[0].text, texts[-1].text, texts[-1].start) == (sent.text, STORY, 0)
    assert read.cursor is not None
    assert read.cursor.length == len(STORY)


async def test_events_that_a_server_repeats_are_left_out(bench: Bench) -> None:
    await create(bench)
    _, texts = await poll(bench, TextCursor(sequence=7, length=21, message=0), kind=RepeatingServer)
    assert (texts[-1].text, texts[-1].start) == ("".join(PIECES[3:]), 21)


async def test_a_server_that_answers_without_a_stream_is_not_asked_again(bench: Bench) -> None:
    await create(bench)
    assert await poll(bench, START, kind=ServerWithoutStreams) == (ReadText(None), [])
