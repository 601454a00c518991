"""Connect to an MCP server: by the standard input and output of a program, or by Streamable HTTP."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2

from mulligan.activities.mcp import _child
from mulligan.activities.mcp.http_client import McpHttpClient
from mulligan.activities.mcp.readable_streams import readable_streams
from mulligan.activities.mcp.response_limit import LINES, MAX_RESPONSE_BYTES
from mulligan.activities.mcp.server_log import SERVER, Stderr
from mulligan.mcp import McpServer


@asynccontextmanager
async def connect_to(
    server: McpServer, stderr: Stderr, on_end: Callable[[], None], auth: httpx2.Auth | None = None
) -> AsyncIterator[Any]:
    """Yield the SDK's transport to a server.

    Args:
        server: The server.
        stderr: Where a program writes its errors.
        on_end: Called when a program closes its stdout: it ends then.
        auth: The authorization of the requests in place of the declared one.
    """
    SERVER.set(server.name)
    if server.url is not None:
        if auth is None and server.auth is not None:
            from mulligan.activities.mcp.oauth import auth_of

            auth = auth_of(server)
        from mcp.client.streamable_http import streamable_http_client

        async with (
            McpHttpClient(server.header_values, auth) as http,
            streamable_http_client(server.url, http_client=http, max_sse_event_size=MAX_RESPONSE_BYTES) as streams,
        ):
            yield readable_streams(*streams)
        return
    from mcp.client.stdio import StdioServerParameters, stdio_client

    program, *arguments = _command_bound_to_worker(server.command or (), server.cwd)
    parameters = StdioServerParameters(
        command=program, args=arguments, env=server.environment(), cwd=server.cwd, encoding=LINES
    )
    async with AsyncExitStack() as stack:
        with stderr.open() as errlog:
            read, write = await stack.enter_async_context(stdio_client(parameters, errlog))
        yield readable_streams(read, write, on_end)


def _command_bound_to_worker(command: Sequence[str], folder: str | os.PathLike[str] | None) -> list[str]:
    """The command in a form in which the program ends with this process, whatever ends this process.

    Raises:
        FileNotFoundError: there is no such program.
    """
    program = shutil.which(command[0]) or shutil.which(os.path.join(folder or "", command[0]))
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "no such program", command[0])
    if sys.platform != "linux":
        return [program, *command[1:]]
    return [sys.executable, "-I", "-S", _child.__file__, str(os.getpid()), os.path.abspath(program), *command[1:]]
