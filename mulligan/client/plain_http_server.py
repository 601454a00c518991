"""A small HTTP/1.1 server, for health checks and for the codec server: both are part of the base installation.

The parser is h11, which the HTTP client of the base installation needs as well. A connection is closed after one request, or
after `SECONDS`; compressed bodies are not decompressed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import h11

SECONDS = 30.0
"""For a connection: its request, the answer, and the pauses of a slow client."""
SECONDS_TO_STOP = 2.0
"""For requests that are open when the server stops."""
MOST_CONNECTIONS = 100
"""At the same time; further ones are closed at once."""
MOST_HEADER_BYTES = 16_384
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """A request. The names of `headers` are in lower case; `body` is None if it is larger than the server accepts."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None


@dataclass(frozen=True)
class Response:
    """A response with a text."""

    status: int
    text: str = ""
    content_type: str = "text/plain; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)


_Handle = Callable[[Request], Awaitable[Response]]


@asynccontextmanager
async def plain_http_server(
    handle: _Handle, host: str, port: int, most_bytes: int = 0
) -> AsyncIterator[tuple[str, int]]:
    """Serve while the block runs; yields the bound host and port.

    Args:
        handle: returns the response to a request.
        host: the address to listen at.
        port: the port to listen at; 0: a free one.
        most_bytes: the maximum size of a request's body.

    Raises:
        OSError: the address cannot be bound.
        OverflowError: the port is none.
    """
    connections: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= MOST_CONNECTIONS:
            writer.close()
            return
        connection = asyncio.ensure_future(_serve(reader, writer, handle, most_bytes))
        connections.add(connection)
        connection.add_done_callback(connections.discard)

    server = await asyncio.start_server(connected, host, port)
    try:
        bound: tuple[str, int] = server.sockets[0].getsockname()[:2]
        yield bound
    finally:
        server.close()
        if connections:
            await asyncio.wait(connections, timeout=SECONDS_TO_STOP)
        for connection in connections:
            connection.cancel()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: _Handle, most_bytes: int) -> None:
    """Answer the request of a connection, and close it."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEADER_BYTES)
    try:
        async with asyncio.timeout(SECONDS):
            try:
                request = await _read(connection, reader, writer, most_bytes)
                if request is None:
                    return
                response = await handle(request)
            except h11.RemoteProtocolError as error:  # its text quotes the request
                request, response = None, Response(error.error_status_hint, "This is not a valid HTTP request.\n")
            except Exception:  # noqa: BLE001 - the server goes on, whatever it is
                _log.exception("A request could not be answered.")
                response = Response(500, "The server failed at this request; its log has the reason.\n")
            writer.write(_written(connection, response, is_head=request is not None and request.method == "HEAD"))
            await writer.drain()
    except (TimeoutError, ConnectionError):
        pass  # the client is too slow, or has gone
    finally:
        writer.close()


async def _read(
    connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most_bytes: int
) -> Request | None:
    """The request of a connection; None if the client closes it without one.

    A body that is too large is read to its end: a client that still sends would not see the response.

    Raises:
        RemoteProtocolError: it is not HTTP.
    """
    head: h11.Request | None = None
    body, size = bytearray(), 0
    while True:
        match connection.next_event():
            case h11.NEED_DATA:
                if connection.they_are_waiting_for_100_continue:
                    writer.write(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
                connection.receive_data(await reader.read(65_536))
            case h11.Request() as begun:
                head = begun
            case h11.Data(data=data):
                size += len(data)
                if size <= most_bytes:
                    body += data
            case h11.EndOfMessage() if head is not None:
                headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
                path = head.target.decode().partition("?")[0]
                return Request(head.method.decode(), path, headers, bytes(body) if size <= most_bytes else None)
            case _:
                return None


def _written(connection: h11.Connection, response: Response, *, is_head: bool) -> bytes:
    """The bytes of a response."""
    content = response.text.encode()
    headers = {"Content-Type": response.content_type, **response.headers, "Connection": "close"}
    if response.status != 204:  # it has no content, so it must not say how long that is
        headers["Content-Length"] = str(len(content))
    sent = connection.send(h11.Response(status_code=response.status, headers=list(headers.items()))) or b""
    if content and not is_head:
        sent += connection.send(h11.Data(data=content)) or b""
    return sent + (connection.send(h11.EndOfMessage()) or b"")
