"""Streams of `mulligan serve`: many watchers, other replicas, a server that is away, clients that do not read, large results."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.service import RetryConfig

from mulligan import connect
from mulligan.client import event_feed, first_reads
from mulligan.client.follow_events import newest_offset
from mulligan.devserver import DevServer
from mulligan.serve import http_protocol
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.http_server import Door, Frame, http_server
from tests.support.lab import DONE, Lab
from tests.support.large_payload_agent import noise
from tests.support.openai_turn import Turn
from tests.support.tcp_proxy import tcp_proxy

LONG = "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals. " * 2


@pytest.fixture(scope="module")
async def writing(lab: Lab) -> AsyncIterator[Lab]:
    """A worker that sends the text of its models ten times a second."""
    queue = f"writing-{uuid.uuid4().hex[:6]}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULLIGAN_LIVE_TEXT_SECONDS", "0.1")
        loaded = load(["tests.support.shop_agents", "tests.support.large_payload_agent"])
        async with running_worker(lab.client, loaded, lab.telemetry, queue):
            yield Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)


async def read(door: Door, run_id: str, since: str = "") -> list[Frame]:
    return [frame async for frame in door.frames(run_id, since)]


def assert_complete(frames: list[Frame]) -> None:
    """Every stored event once and in order, unique ids, and deltas without a gap."""
    offsets = [frame.data["offset"] for frame in frames if "offset" in frame.data]
    assert offsets == list(range(len(offsets)))
    assert len({frame.id for frame in frames}) == len(frames)
    assert frames[-1].event == "run_ended"
    written = "".join(frame.data["text"] for frame in frames if frame.event == "text_delta")
    answers = [frame.data["text"] for frame in frames if frame.event == "answered"]
    assert answers[0].startswith(written)


async def test_many_watchers_of_a_run_get_every_event_from_one_reader(
    writing: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those who come later, and those whom another replica has served before."""
    opened: list[str] = []
    make = event_feed.EventFeed.__init__

    def count(self: Any, client: Any, workflow_id: str, every: float, first_reads: Any) -> None:
        opened.append(workflow_id)
        make(self, client, workflow_id, every, first_reads)

    monkeypatch.setattr(event_feed.EventFeed, "__init__", count)
    async with http_server(writing.client, task_queue=writing.task_queue) as door:
        all_read = asyncio.Event()
        handles = [await writing.start([Turn(LONG, pace=0.1, gates={20: all_read}), DONE]) for _ in range(3)]
        watchers = [asyncio.create_task(read(door, handles[n % 3].id)) for n in range(30)]
        half: list[Frame] = []
        async for frame in door.frames(handles[0].id):
            half.append(frame)
            if frame.event == "text_delta":
                break
        late = asyncio.create_task(read(door, handles[0].id))
        async with http_server(writing.client, task_queue=writing.task_queue) as other:
            reading = asyncio.create_task(read(other, handles[0].id, half[-1].id or ""))
            while len(opened) < 4:
                await asyncio.sleep(0.02)
            all_read.set()
            rest = await reading
        for frames in await asyncio.gather(*watchers, late):
            assert_complete(frames)
        assert_complete([*half, *rest])
        assert any(frame.event == "text_delta" for frame in rest)
    assert sorted(opened) == sorted([handle.id for handle in handles] + [handles[0].id])


async def test_runs_are_read_for_the_first_time_a_few_at_once_and_followed_together(
    writing: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one place that nobody gives back by time: a run that has been read leaves it to the next, and is followed on."""
    monkeypatch.setattr(first_reads, "AT_ONCE", 1)
    monkeypatch.setattr(first_reads, "LONGEST_HOLD", 600.0)
    monkeypatch.setattr(first_reads, "LONGEST_WAIT", 600.0)
    reading, most = 0, 0

    async def slow(client: Any, workflow_id: str) -> int:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0.2)
        try:
            return await newest_offset(client, workflow_id)
        finally:
            reading -= 1

    monkeypatch.setattr(event_feed, "newest_offset", slow)
    async with http_server(writing.client, task_queue=writing.task_queue) as door:
        all_read = asyncio.Event()
        handles = [await writing.start([Turn(LONG, pace=0.1, gates={20: all_read}), DONE]) for _ in range(4)]
        watchers = [asyncio.create_task(read(door, handle.id)) for handle in handles]
        for handle in handles:
            async for frame in door.frames(handle.id):
                if frame.event == "text_delta":  # before any of them has ended
                    break
        all_read.set()
        for frames in await asyncio.gather(*watchers):
            assert_complete(frames)
    assert most == 1


async def test_a_stream_pauses_while_temporal_is_away_and_goes_on_at_its_position(
    writing: Lab, temporal: DevServer
) -> None:
    """Meanwhile other requests get 503 with Retry-After."""
    async with tcp_proxy(temporal.address) as proxy:
        retry = RetryConfig(max_elapsed_time_millis=300)
        client = await connect(proxy.address, namespace=temporal.namespace, retry_config=retry)
        async with http_server(client, task_queue=writing.task_queue) as door:
            is_back = asyncio.Event()
            handle = await writing.start([Turn(LONG, pace=0.1, gates={20: is_back}), DONE])
            frames: list[Frame] = []
            async for frame in door.frames(handle.id):
                frames.append(frame)
                if frame.event == "text_delta" and not is_back.is_set():
                    proxy.cut()
                    away = await door.http.get(f"/api/runs/{handle.id}")
                    assert (away.status_code, away.json()["code"]) == (503, "unavailable")
                    assert int(away.headers["retry-after"]) > 0
                    proxy.restore()
                    is_back.set()
    assert is_back.is_set()
    assert_complete(frames)


async def test_a_client_that_does_not_read_is_cut_off(
    writing: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When the buffers are full; others are served. And a result of more than a megabyte is whole in the stream."""
    caplog.set_level(logging.INFO, http_protocol.__name__)
    monkeypatch.setattr(http_protocol, "SEND_SECONDS", 0.5)
    size = 1_300_000
    calls = [("give_noise", json.dumps({"size": size, "seed": seed}), f"c{seed}") for seed in range(8)]
    handle = await writing.start([Turn(calls=calls[:4]), Turn(calls=calls[4:]), DONE], agent="large")
    async with http_server(writing.client, task_queue=writing.task_queue) as door:
        host, _, port = door.url.removeprefix("http://").partition(":")
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
        deaf.connect((host, int(port)))
        deaf.sendall(
            f"GET /api/runs/{handle.id}/events HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        frames = await read(door, handle.id)
        assert_complete(frames)
        results = {
            frame.data["call_id"]: frame.data["result"]["text"]
            for frame in frames
            if frame.event == "tool_call_settled"
        }
        assert results == {f"c{seed}": noise(size, seed) for seed in range(8)}
        while not any("did not read for 0.5 s, and was cut off" in said for said in caplog.messages):
            await asyncio.sleep(0.02)
        deaf.setblocking(False)
        received = 0
        with deaf:
            while data := await asyncio.get_running_loop().sock_recv(deaf, 1_000_000):
                received += len(data)
        assert received < 8 * size


async def test_more_watchers_than_the_limit_are_refused(writing: Lab) -> None:
    async with http_server(writing.client, task_queue=writing.task_queue, most_watchers=1) as door:
        refused_now = asyncio.Event()
        handle = await writing.start([Turn(LONG, wait=refused_now), DONE])
        async for _ in door.frames(handle.id):
            refused = await door.http.get(f"/api/runs/{handle.id}/events", headers={"Accept": "text/event-stream"})
            assert (refused.status_code, refused.json()["code"]) == (503, "too_many_watchers")
            break
        refused_now.set()
        while (await door.http.get(f"/api/runs/{handle.id}/events")).json()["complete"] is False:
            await asyncio.sleep(0.1)
        assert_complete(await read(door, handle.id))
