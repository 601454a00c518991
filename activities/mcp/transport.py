"""How an MCP server is reached: a program that ends with the worker, or Streamable HTTP."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio

from mulligan.activities.mcp import _child
from mulligan.activities.mcp.http_client import McpHttpClient
from mulligan.activities.mcp.server_log import Stderr
from mulligan.mcp import McpServer


@asynccontextmanager
async def connected(server: McpServer, stderr: Stderr, ended: Callable[[], None]) -> AsyncIterator[Any]:
    """The SDK's transport to a server. `ended` is told where a program has closed its stdout, as it does when it ends."""
    if server.url is not None:
        from mcp.client.streamable_http import streamable_http_client

        async with (
            McpHttpClient(server.header_values) as http,
            streamable_http_client(server.url, http_client=http) as streams,
        ):
            yield streams
        return
    from mcp.client.stdio import StdioServerParameters, stdio_client

    program, *arguments = _bound_to_this(server.command or (), server.cwd)
    what = StdioServerParameters(command=program, args=arguments, env=server.environment(), cwd=server.cwd)
    async with AsyncExitStack() as stack:
        with stderr.opened() as errlog:
            read, write = await stack.enter_async_context(stdio_client(what, errlog))
        yield _Watched(read, ended), write


class _Watched:
    """The messages of a program, and word of their end: the SDK closes the session then, and tells nobody."""

    def __init__(self, read: Any, ended: Callable[[], None]) -> None:
        self._read, self._ended = read, ended

    async def receive(self) -> Any:
        """The next message."""
        try:
            return await self._read.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._ended()
            raise

    async def aclose(self) -> None:
        """Take no more."""
        await self._read.aclose()

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> _Watched:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _bound_to_this(command: Sequence[str], folder: str | os.PathLike[str] | None) -> list[str]:
    """The command, so that the program ends with this process, however that ends.

    Raises:
        FileNotFoundError: there is no such program.
    """
    found = shutil.which(command[0]) or shutil.which(os.path.join(folder or "", command[0]))
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "no such program", command[0])
    if sys.platform != "linux":
        return [found, *command[1:]]
    return [sys.executable, "-I", "-S", _child.__file__, str(os.getpid()), os.path.abspath(found), *command[1:]]
