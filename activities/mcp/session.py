"""One session with an MCP server: kept by a task of its own, and begun anew when it has ended."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from mulligan.activities.mcp.http_client import record_http
from mulligan.activities.mcp.server_log import Stderr
from mulligan.activities.mcp.transport import connected
from mulligan.activities.tool_running.tool_runtime import TookTooLong
from mulligan.durations import seconds
from mulligan.mcp import McpError, McpServer, McpUnavailable

if TYPE_CHECKING:  # else loaded with the first session: most workers have no MCP server
    from mcp.client import Client
    from mcp.shared.dispatcher import ProgressFnT
    from mcp.types import Tool

T = TypeVar("T")
logger = logging.getLogger("mulligan.mcp")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds for which a server that could not be started is not tried again; they double each time."""
CLOSE_LIMIT = 10.0
"""Seconds that a session may take to end: the SDK gives a program two to go by itself, and two more until it is killed."""
MOST_PAGES = 100
_NO_WORDS = "Server returned an error response"
"""The SDK's, where a server has none of its own."""
_CLOSED = "Connection closed"
"""The SDK's words for a program that has ended."""


class McpSession:
    """The session that a worker has with a server: there is none until it is used, and a new one after it has ended."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._now: _Session | None = None
        self._running: set[_Session] = set()
        """This one, and those before it whose programs have not ended yet."""
        self._failures, self._not_before = 0, 0.0

    async def tools(self) -> list[Tool]:
        """The server's tools, as it lists them now.

        Raises:
            McpUnavailable: it cannot be started, or does not answer in time.
        """
        began = self._now
        if began is not None and not began.is_over:
            await self._open()
            try:
                async with asyncio.timeout(seconds(self._server.start_timeout)):
                    return await self._use(list_tools)
            except TimeoutError:
                if began.busy == 0:
                    began.end()  # it hangs, and nobody would lose a call by its end
                raise McpUnavailable(self._says("did not list its tools in time")) from None
            except McpUnavailable:
                if not began.is_over:
                    raise
                # It died, and that is known only now. To list is to ask: another one may be asked the same.
        return (await self._open()).listed

    async def call(self, tool: str, arguments: dict[str, Any], progress: ProgressFnT) -> Any:
        """Call a tool, by the server's own name for it; what it answers is the SDK's CallToolResult.

        The time that the server takes to start is not the call's.

        Raises:
            TookTooLong: it did not answer in time; it was told to stop.
            McpUnavailable: it cannot be started, or has ended.
            McpError: it refused the call, or speaks against the protocol.
        """
        await self._open()
        limit = seconds(self._server.timeout)
        try:
            async with asyncio.timeout(limit):
                return await self._use(lambda client: client.call_tool(tool, arguments, progress_callback=progress))
        except TimeoutError:
            raise TookTooLong(limit) from None

    async def close(self) -> None:
        """End the session, and with it the program."""
        await asyncio.gather(*(session.close() for session in self._running))

    async def _use(self, work: Callable[[Client], Awaitable[T]]) -> T:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        session = await self._open()
        for again in (True, False):
            with record_http() as seen, session.used():
                try:
                    return await work(session.client)
                except MCPError as error:
                    if seen.is_expired and again:
                        session.end()
                        session = await self._open()
                        continue
                    if seen.error is not None or (seen.status or 0) >= 500:
                        raise McpUnavailable(self._says(f"did not take the call: {seen}")) from error
                    if error.code == CONNECTION_CLOSED:
                        raise McpUnavailable(
                            f"The MCP server `{self._server.name}` ended, or broke off, before it answered: it may or may "
                            "not have done the work. It is started again with the next call."
                        ) from error
                    why = str(seen) if seen.status and error.message == _NO_WORDS else error.message
                    raise McpError(self._says(f"refused the call: {why}", "")) from error
                except (RuntimeError, ValueError) as error:
                    # What the SDK says of an answer that is not as the protocol, or the tool's own schema, has it.
                    text = str(error).split("\n")[0]
                    raise McpError(self._says(f"gave an answer that is not valid: {text}", "")) from error
        raise AssertionError("a session is tried twice")

    async def _open(self) -> _Session:
        """The session, which is begun if there is none.

        Raises:
            McpUnavailable: it could not be begun, just now or a moment ago.
        """
        session = self._now
        if session is None or session.is_over:
            if session is not None and session.why and time.monotonic() < self._not_before:
                raise McpUnavailable(self._says(session.why))
            session = self._now = _Session(self._server)
            self._running = {each for each in self._running if not each.task.done()} | {session}
        await session.begun.wait()
        if session.why:
            if session.is_told:
                raise McpUnavailable(self._says(session.why))
            session.is_told = True
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._failures)
            self._failures, self._not_before = self._failures + 1, time.monotonic() + pause
            said = f" Its last words: {session.stderr.last}" if session.stderr.last else ""
            logger.warning("MCP server %r %s.%s", self._server.name, session.why, said)
            raise McpUnavailable(self._says(session.why))
        self._failures = 0
        return session

    def _says(self, what: str, then: str = " Go on without it, or try it again later.") -> str:
        return f"The MCP server `{self._server.name}` {what.rstrip('.')}.{then}"


class _Session:
    """One session, from its beginning to its end in one task: the SDK's scopes are left by the task that entered them."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._stop = asyncio.Event()
        self._scope = anyio.CancelScope()
        self.begun = asyncio.Event()
        self.is_over = self.is_told = False
        self.busy = 0
        self.why = ""
        """Why it could not be begun."""
        self.client: Client
        self.listed: list[Tool] = []
        """The tools, as they were listed when it began."""
        self.stderr = Stderr(server.name)
        self.task = asyncio.create_task(self._run(), name=f"MCP server {server.name}")

    @contextmanager
    def used(self) -> Iterator[None]:
        """Count what is asked of it just now."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    def end(self) -> None:
        """Let it end; the next use begins another one."""
        self.is_over = True
        self._stop.set()

    async def close(self) -> None:
        """End it, and wait for that."""
        self.end()
        if not self.begun.is_set():
            self._scope.cancel()
        await asyncio.wait([self.task], timeout=CLOSE_LIMIT)
        self._scope.cancel()
        await asyncio.wait([self.task], timeout=CLOSE_LIMIT)

    async def _run(self) -> None:
        from mcp.client import Client
        from mcp.types import Implementation

        limit = seconds(self._server.start_timeout)
        with record_http() as seen:
            try:
                with self._scope:
                    self._scope.deadline = anyio.current_time() + limit
                    about = Implementation(name="mulligan", version=version("mulligan"))
                    async with Client(
                        connected(self._server, self.stderr, self.end), client_info=about, cache=None
                    ) as client:
                        self.client = client
                        self.listed = await list_tools(client)
                        self._scope.deadline = math.inf
                        self.begun.set()
                        await self._stop.wait()
            except Exception as error:  # noqa: BLE001 - whatever the SDK, the program or the network does
                if not self.begun.is_set():
                    self.why = f"could not be started: {str(seen) or _reason(error)}"
                elif not self._stop.is_set():
                    logger.warning("The session with MCP server %r broke: %s", self._server.name, _reason(error))
            finally:
                if not self.begun.is_set() and not self.why:
                    self.why = f"did not answer within {limit:g} s" if not self.is_over else "was not started any more"
                self.is_over = True
                self.begun.set()


async def list_tools(client: Client) -> list[Tool]:
    """All pages of a server's tools."""
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


def _reason(error: BaseException) -> str:
    """The first of what may be a whole group of errors, as a phrase."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, FileNotFoundError):
        return f"there is no {error.filename}"
    if str(error) == _CLOSED:
        return "it ended at once"
    return " ".join((str(error) or type(error).__name__).split())[:300]
