"""Connections to `mulligan serve` on which no complete request comes: they are closed, and others are served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio.service import RetryConfig

from mulligan import connect
from mulligan.serve.connections import Connections
from tests.support.http_server import Door, http_server
from tests.support.search_size import examples

GIVE_UP = 120.0
"""Seconds after which a server that does nothing is taken to be stuck. Nothing is measured by it."""
NEVER = 1_000.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HEAD = b"GET /console/sign-in HTTP/1.1\r\nHost: localhost\r\n"
KINDS: dict[str, list[bytes]] = {
    # what a client sends, piece by piece; it reads nothing
    "nothing": [],
    "half a head": [HEAD],
    "a head, slowly": [b"G"],
    "a request, and nothing more": [HEAD + b"\r\n"],
    "half a second head": [HEAD + b"\r\n" + HEAD],
    "no token, half a body": [
        b"POST /api/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
        b"x" * 500,
    ],
    "a form, half a body": [
        b"POST /console/sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
        b"x" * 500,
    ],
    "no HTTP": [b"\x16\x03\x01\r\n\r\n"],
}


@asynccontextmanager
async def serving(connections: Connections, **options: Any) -> AsyncIterator[Door]:
    client = await connect("127.0.0.1:1", lazy=True, retry_config=RetryConfig(max_elapsed_time_millis=300))
    async with http_server(client, tokens="ada:token-of-ada", connections=connections, **options) as door:
        yield door


async def open_connection(door: Door, kind: str = "nothing") -> Streams:
    host, _, port = door.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for piece in KINDS[kind]:
        writer.write(piece)
        with suppress(ConnectionError):
            await writer.drain()
    return reader, writer


async def until_closed(streams: Streams, drip: bytes = b"") -> None:
    """Wait until the server has closed a connection, on which `drip` is sent again and again."""
    reader, writer = streams

    async def send() -> None:
        with suppress(ConnectionError):
            while drip:
                writer.write(drip)
                await writer.drain()
                await asyncio.sleep(0.01)

    sending = asyncio.create_task(send())
    async with asyncio.timeout(GIVE_UP):
        with suppress(ConnectionError):
            await reader.read()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_connection_without_a_complete_request_is_closed_though_bytes_come(kind: str) -> None:
    async with serving(Connections(100, head_seconds=0.3, body_seconds=0.3)) as door:
        streams = await open_connection(door, kind)
        drip = b"x" if kind != "nothing" else b""
        await until_closed(streams, drip)
        assert streams[0].at_eof() or streams[0].exception() is not None
        streams[1].transport.abort()


async def test_a_request_that_is_served_has_no_time_limit() -> None:
    """It is served until a connection that begins after it has been closed by its limit."""
    released = asyncio.Event()

    def held(application: Any) -> Any:
        async def hold(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await released.wait()
            await application(scope, receive, send)

        return hold

    async with serving(Connections(100, head_seconds=0.3, body_seconds=0.3), wrap=held) as door:
        answer = asyncio.create_task(door.http.get("/console/sign-in"))
        streams = await open_connection(door)
        await until_closed(streams)
        streams[1].transport.abort()
        assert not answer.done()
        released.set()
        assert (await answer).status_code == 200


async def test_where_there_are_too_many_the_one_that_has_said_nothing_longest_is_closed() -> None:
    async with serving(Connections(10, head_seconds=NEVER, body_seconds=NEVER)) as door:
        silent = [await open_connection(door) for _ in range(10)]
        assert (await door.http.get("/console/sign-in")).status_code == 200
        await until_closed(silent[0])
        writers = [writer for _, writer in silent]
        assert not any(reader.at_eof() for reader, _ in silent[1:])
        for writer in writers:
            writer.transport.abort()


async def test_where_all_are_served_the_newest_one_is_closed() -> None:
    released, served = asyncio.Event(), asyncio.Semaphore(0)

    def held(application: Any) -> Any:
        async def hold(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                served.release()
                await released.wait()
            await application(scope, receive, send)

        return hold

    async with serving(Connections(3, head_seconds=NEVER), wrap=held) as door:
        answers = [asyncio.create_task(door.http.get("/console/sign-in")) for _ in range(3)]
        for _ in range(3):
            await served.acquire()
        newest = await open_connection(door)
        await until_closed(newest)
        newest[1].transport.abort()
        released.set()
        assert [answer.status_code for answer in await asyncio.gather(*answers)] == [200, 200, 200]


@settings(max_examples=examples(4), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=25, max_size=60))
async def test_whatever_others_leave_open_a_request_is_served(kinds: list[str]) -> None:
    """No time limit passes here: only the number of connections is bounded, and there are more of them."""
    async with serving(Connections(20, head_seconds=NEVER, body_seconds=NEVER)) as door:
        left = [await open_connection(door, kind) for kind in kinds]
        async with asyncio.timeout(GIVE_UP):
            assert (await door.http.get("/console/sign-in")).status_code == 200
        for _, writer in left:
            writer.transport.abort()
