"""The small HTTP server of health checks and of the codec server: what it accepts, and its bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from mulligan.client import plain_http_server as server
from mulligan.client.plain_http_server import Request, Response, plain_http_server

BOUND = 10
Send = Callable[[bytes], Awaitable[bytes]]


async def echo(request: Request) -> Response:
    if request.path == "/fails":
        raise ValueError("a secret of the handler")
    body = "too large" if request.body is None else request.body.decode()
    return Response(200, f"{request.method} {request.path} {request.headers.get('x')} {body}")


@asynccontextmanager
async def serving() -> AsyncIterator[Send]:
    """Yields a function that sends bytes, and returns all that comes back until the server closes the connection."""
    async with plain_http_server(echo, "127.0.0.1", 0, BOUND) as (host, port):

        async def send(text: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(text)
            answer = await reader.read()
            writer.close()
            return answer

        yield send


def request(method: bytes = b"GET", target: bytes = b"/", headers: bytes = b"", body: bytes = b"") -> bytes:
    return method + b" " + target + b" HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n" + body


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


CHUNKED = b"Transfer-Encoding: chunked\r\n"
REQUESTS = [
    (request(headers=b"X: y\r\n"), b" 200 ", b"GET / y "),
    (request(target=b"/a?b=c"), b" 200 ", b"GET /a None "),
    (request(b"POST", headers=b"Content-Length: 10\r\n", body=b"0123456789"), b" 200 ", b"0123456789"),
    (request(b"POST", headers=b"Content-Length: 11\r\n", body=b"01234567890"), b" 200 ", b"too large"),
    (request(b"POST", headers=CHUNKED, body=chunked(b"0123456789")), b" 200 ", b"0123456789"),
    (request(b"POST", headers=CHUNKED, body=chunked(b"0" * 100_000)), b" 200 ", b"too large"),
    (request() + request(target=b"/second"), b" 200 ", b"GET / None "),
    (request(b"HEAD"), b" 200 ", b"\r\n\r\n"),
    (request(target=b"/fails"), b" 500 ", b"failed at this request"),
    (b"no HTTP\r\n\r\n", b" 400 ", b"not a valid HTTP request"),
    (request(headers=b"Content-Length: much\r\n"), b" 400 ", b"not a valid HTTP request"),
    (b"GET / HTTP/1.1\r\n\r\n", b" 400 ", b"not a valid HTTP request"),  # no Host
    (request(headers=b"X: %s\r\n" % (b"y" * 100_000)), b" 431 ", b"not a valid HTTP request"),
]


@pytest.mark.parametrize(("sent", "status", "ends"), REQUESTS, ids=range(len(REQUESTS)))
async def test_a_request_is_answered_and_the_connection_is_closed(sent: bytes, status: bytes, ends: bytes) -> None:
    async with serving() as send:
        answer = await send(sent)
    assert status in answer.partition(b"\r\n")[0]
    assert ends in answer
    assert b"second" not in answer
    assert b"secret" not in answer
    assert b"Connection: close\r\n" in answer
    assert not sent.startswith(b"HEAD") or answer.endswith(b"\r\n\r\n")


async def test_a_client_that_waits_is_told_to_send_the_body() -> None:
    async with plain_http_server(echo, "127.0.0.1", 0, BOUND) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request(b"POST", headers=b"Content-Length: 2\r\nExpect: 100-continue\r\n"))
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"ok")
        assert (await reader.read()).endswith(b"POST / None ok")
        writer.close()


async def test_a_slow_request_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SECONDS", 0.2)
    async with serving() as send:
        assert await send(b"GET / HTTP/1.1\r\n") == b""


async def test_more_connections_than_the_limit_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 1)
    async with plain_http_server(echo, "127.0.0.1", 0) as (host, port):
        _, idle = await asyncio.open_connection(host, port)
        idle.write(b"GET ")
        await idle.drain()
        reader, writer = await asyncio.open_connection(host, port)
        assert await reader.read() == b""
        idle.close()
        writer.close()


async def test_an_open_connection_does_not_keep_the_server_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SECONDS_TO_STOP", 0.1)
    async with plain_http_server(echo, "127.0.0.1", 0) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET ")
        await writer.drain()
    assert await reader.read() == b""
    writer.close()
