"""A proxy between a client and a server that can be cut off, as a network is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class TcpProxy:
    """Passes bytes on while it is not cut."""

    def __init__(self, target: str) -> None:
        self._host, _, self._port = target.rpartition(":")
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self._ends_next = False
        self.requests_ended = 0
        self._ends_next_answer = False
        self.answers_ended = 0
        self.address = ""

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def restore(self) -> None:
        """Accept connections again."""
        self._is_cut = False

    def end_next_request(self) -> None:
        """End the connection on which a client sends next, as a server does that closes a connection because of its age."""
        self._ends_next = True

    def end_next_answer(self) -> None:
        """End the connection on which the server answers next, without the answer."""
        self._ends_next_answer = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        if self._is_cut:
            writer.transport.abort()
            return
        upstream_reader, upstream = await asyncio.open_connection(self._host, int(self._port))
        self._writers |= {writer, upstream}
        with suppress(OSError):
            await asyncio.wait(
                [
                    asyncio.create_task(self._pass_requests(reader, upstream)),
                    asyncio.create_task(self._pass_answers(upstream_reader, writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        for each in (writer, upstream):
            self._writers.discard(each)
            each.transport.abort()

    async def _pass_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                if self._ends_next:
                    self._ends_next = False
                    self.requests_ended += 1
                    return
                writer.write(data)
                await writer.drain()

    async def _pass_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                if self._ends_next_answer:
                    self._ends_next_answer = False
                    self.answers_ended += 1
                    return
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def tcp_proxy(target: str) -> AsyncIterator[TcpProxy]:
    """A proxy of `host:port` on a free port, while the block runs."""
    proxy = TcpProxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        proxy.cut()
        server.close()
