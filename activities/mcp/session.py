"""The session with an MCP server: a task of its own runs it, and it is opened again after it has ended."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import Context
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio

from mulligan.activities.mcp.call_failure import MAY_HAVE_RUN, failure_of, message, refusal_of
from mulligan.activities.mcp.elicitation import Ask, CallInProgress, CallsInProgress
from mulligan.activities.mcp.forgotten_session import Refusal, cannot_have_run, forgotten
from mulligan.activities.mcp.http_client import record_http
from mulligan.activities.mcp.readable_result import note_unreadable
from mulligan.activities.mcp.server_log import Stderr
from mulligan.activities.mcp.tool_list import ToolList, list_tools
from mulligan.activities.mcp.tool_request import ToolRequest
from mulligan.activities.mcp.transport import connect_to
from mulligan.activities.tool_running.thread_bounds import TookTooLong
from mulligan.durations import seconds
from mulligan.mcp import McpError, McpServer, McpUnavailable
from mulligan.mcp_auth import LoginNeeded
from mulligan.schema.schema_cost import check_size
from mulligan.wire.questions import Questions

if TYPE_CHECKING:  # imported with the first session otherwise: most workers have no MCP server
    from mcp.client import Client
    from mcp.shared.dispatcher import ProgressFnT
    from mcp.types import CallToolResult

    from mulligan.wire.questions import Replies

T = TypeVar("T")
FaultsBy = Callable[[dict[str, Any], Any], Awaitable[list[tuple[str, str]]]]
logger = logging.getLogger("mulligan.mcp")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds in which a server that could not be started is not started again; they double each time."""
CLOSE_LIMIT = 10.0
"""Seconds that a session may take to close: the SDK gives a program two to end, and two more until it is killed."""
PROBE_LIMIT = 5.0
"""Seconds in which a server answers whether it knows a session."""


class McpSession:
    """The session of a worker with a server. It opens at the first use, and again at the next use after it has ended."""

    def __init__(self, server: McpServer, faults_by: FaultsBy) -> None:
        """`faults_by` checks structured results by schemas whose validation may take long."""
        self._server, self._faults_by = server, faults_by
        self._current: _Session | None = None
        self._running: set[_Session] = set()
        """The current session, and earlier ones whose programs have not ended yet."""
        self._failures, self._not_before = 0, 0.0
        self._renewing = asyncio.Lock()

    async def tools(self) -> ToolList:
        """List the server's tools.

        Raises:
            McpUnavailable: the server cannot be started, or does not answer in time.
        """
        session = self._current
        if session is not None and not session.is_over:
            await self._open()
            try:
                async with asyncio.timeout(seconds(self._server.start_timeout)):
                    return await self._use(list_tools)
            except TimeoutError:
                if session.requests_in_progress == 0:
                    session.end()  # the server hangs, and no call is lost when the session ends
                raise McpUnavailable(message(self._server, "did not list its tools in time")) from None
            except McpUnavailable:
                if not session.is_over:
                    raise
                # Its program had ended unnoticed. Listing changes nothing, so a new session may list again.
        return (await self._open()).listed

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        progress: ProgressFnT,
        *,
        ask: Ask | None = None,
        replies: Replies | None = None,
    ) -> CallToolResult | Questions:
        """Call a tool by the server's own name for it; returns its result, or what the server asks before it continues.

        The time in which the server starts does not count against the call's timeout, nor does that in which a person is
        asked. `ask`: asks a person while the call runs; None: nobody. `replies`: continue a call that asked before.

        Raises:
            TookTooLong: the server did not answer in time; the call was cancelled.
            McpUnavailable: the server cannot be started, or has ended.
            McpError: the server refused the call, or its answer cannot be read.
        """
        await self._open()
        limit = seconds(self._server.timeout)
        request = ToolRequest(tool, arguments, progress, replies, may_ask=self._server.questions)
        try:
            async with asyncio.timeout(limit) as clock:
                call = CallInProgress(ask, clock)
                result = await self._use(
                    request.run,
                    call,
                    may_have_run=lambda refusal: (
                        not cannot_have_run(refusal, has_begun=request.has_begun or call.has_asked)
                    ),
                )
        except TimeoutError:
            raise TookTooLong(limit) from None
        if not isinstance(result, Questions) and not result.is_error:
            await self._check_result(tool, result)
        return result

    async def close(self) -> None:
        """Close the session, and end its program."""
        await asyncio.gather(*(session.close() for session in self._running))

    async def _use(
        self,
        request: Callable[[Client], Awaitable[T]],
        call: CallInProgress | None = None,
        may_have_run: Callable[[Refusal], bool] = lambda _: False,
    ) -> T:
        """Send a request, again in a new session if the server has forgotten the one in which it refused the request.

        `call`: the tool's call, if it is one. `may_have_run`: whether a refused request is not sent again.
        """
        from mcp import MCPError

        session = await self._open()
        for may_retry in (True, False):
            with record_http() as http, session.in_use(call):
                try:
                    return await request(session.client)
                except McpError as error:
                    raise type(error)(message(self._server, f"cannot be used like this: {error}", "")) from error
                except MCPError as error:
                    failure, refusal = failure_of(error, http, self._server), refusal_of(error, http, self._server)
                    failure.__cause__ = error
                except (RuntimeError, ValueError) as error:
                    # The SDK raises these for an answer that violates the protocol.
                    text = str(error).split("\n")[0]
                    what = f"answered, but its answer cannot be read: {text}"
                    raise McpError(message(self._server, what, " The call may have run.")) from error
            if refusal is None or not await self._renew(session, forgotten(refusal)):
                raise failure
            if may_have_run(refusal):
                what = "has forgotten the session of this worker, and gave no result"
                raise McpUnavailable(message(self._server, what, f"{MAY_HAVE_RUN} The next call has a new session."))
            if not may_retry:
                raise failure
            session = await self._open()
        raise AssertionError("a session is tried twice")

    async def _check_result(self, tool: str, result: CallToolResult) -> None:
        """Note what of a structured result is not as the tool's schema says. The call has run, whatever its result is."""
        session = self._current
        listed = session.listed.tools if session is not None else []
        schema = next((each.output_schema for each in listed if each.name == tool), None)
        if schema is None or result.structured_content is None:
            return
        try:
            check_size(schema)
        except TypeError:
            return
        if faults := await self._faults_by(schema, result.structured_content):
            path, says = faults[0]
            note_unreadable(result, f"`{path or 'it'}` {says}")

    async def _renew(self, old: _Session, is_forgotten: Literal["yes", "perhaps", "no"]) -> bool:
        """Whether there is a new session in place of one that the server has forgotten.

        Where that is not certain, it is asked something else; a server at a URL that takes no new session either is just not
        well. A program is not started beside itself: both may need the same file or port.
        """
        if is_forgotten == "no":
            return False
        async with self._renewing:
            if self._current is not old:
                return True
            if is_forgotten == "perhaps" and not await old.is_refused(self._server):
                return False
            if self._server.url is None:
                old.retire()
                await old.end_if_idle()
                if self._current is not old:
                    return True  # another call has opened one meanwhile
            new = self._start()
            if is_forgotten == "perhaps" and self._server.url is not None:
                try:
                    await new.opened.wait()
                except asyncio.CancelledError:
                    new.end()  # whose call it was, waits no more
                    raise
                if new.open_error:
                    return False
            logger.info("MCP server %r has forgotten its session.", self._server.name)
            self._current = new
            old.retire()
        return True

    def _start(self) -> _Session:
        new = _Session(self._server)
        self._running = {each for each in self._running if not each.task.done()} | {new}
        return new

    async def _open(self) -> _Session:
        """Return the open session, and open one if there is none.

        Raises:
            McpUnavailable: it could not be opened, now or at an attempt so recent that it is not repeated.
        """
        session = self._current
        if session is None or session.is_over:
            if session is not None and session.open_error and time.monotonic() < self._not_before:
                raise McpUnavailable(message(self._server, session.open_error)) from session.login_needed
            session = self._current = self._start()
        await session.opened.wait()
        if session.open_error:
            if session.is_error_logged:
                raise McpUnavailable(message(self._server, session.open_error)) from session.login_needed
            session.is_error_logged = True
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._failures)
            self._failures, self._not_before = self._failures + 1, time.monotonic() + pause
            last = f" Its last words: {session.stderr.last_line}" if session.stderr.last_line else ""
            logger.warning("MCP server %r %s.%s", self._server.name, session.open_error, last)
            raise McpUnavailable(message(self._server, session.open_error)) from session.login_needed
        self._failures = 0
        return session


class _Session:
    """One session. One task opens and closes it: the SDK's cancel scopes must be left by the task that entered them."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._stop = asyncio.Event()
        self._scope = anyio.CancelScope()
        self.opened = asyncio.Event()
        self.is_over = self.is_error_logged = self._is_retired = False
        self.requests_in_progress = 0
        self.open_error = ""
        """Why it could not be opened; empty if it is open."""
        self.login_needed: LoginNeeded | None = None
        """The same, if it needs a login."""
        self.client: Client
        self.listed = ToolList()
        """The tools that the server listed when the session opened."""
        self.stderr = Stderr(server.name)
        self._calls = CallsInProgress()
        # Not in the context of the activity that opens it: the session outlives that, and logs about no run.
        self.task = asyncio.create_task(self._run(), name=f"MCP server {server.name}", context=Context())

    @contextmanager
    def in_use(self, call: CallInProgress | None = None) -> Iterator[None]:
        """Count a request that is in progress. `call`: the tool's call, if it is one."""
        self.requests_in_progress += 1
        try:
            with self._calls.add(call) if call is not None else nullcontext():
                yield
        finally:
            self.requests_in_progress -= 1
            if self._is_retired and not self.requests_in_progress:
                self.end()

    def retire(self) -> None:
        """Let it end once its requests have ended; the next use opens another session."""
        self.is_over = self._is_retired = True
        if not self.requests_in_progress:
            self.end()

    async def end_if_idle(self) -> None:
        """Wait until it has ended, unless it has open requests."""
        if not self.requests_in_progress:
            await asyncio.wait([self.task], timeout=CLOSE_LIMIT)

    async def is_refused(self, server: McpServer) -> bool:
        """Whether the server refuses also what changes nothing, in this session."""
        from mcp import MCPError

        with record_http() as http, self.in_use():
            try:
                async with asyncio.timeout(PROBE_LIMIT):
                    await self.client.session.list_tools()
            except MCPError as error:
                refusal = refusal_of(error, http, server)
                return refusal is not None and forgotten(refusal) != "no"
            except (TimeoutError, RuntimeError, ValueError):
                return False
        return False

    def end(self) -> None:
        """Let it end without waiting for that; the next use opens another session."""
        self.is_over = True
        self._stop.set()

    async def close(self) -> None:
        """End it, and wait until it has ended."""
        self.end()
        if not self.opened.is_set():
            self._scope.cancel()
        await asyncio.wait([self.task], timeout=CLOSE_LIMIT)
        self._scope.cancel()
        await asyncio.wait([self.task], timeout=CLOSE_LIMIT)

    async def _run(self) -> None:
        from mcp.client import Client
        from mcp.types import Implementation

        limit = seconds(self._server.start_timeout)
        with record_http() as http:
            try:
                with self._scope:
                    self._scope.deadline = anyio.current_time() + limit
                    client_info = Implementation(name="mulligan", version=version("mulligan"))
                    async with Client(
                        connect_to(self._server, self.stderr, self.end),
                        client_info=client_info,
                        cache=None,
                        elicitation_callback=self._calls.elicit if self._server.questions else None,
                    ) as client:
                        self.client = client
                        self.listed = await list_tools(client)
                        # The SDK's own check runs a server's patterns on the worker's event loop, and withholds results.
                        client.session.validate_tool_result = _unchecked  # type: ignore[method-assign]
                        self._scope.deadline = math.inf
                        self.opened.set()
                        await self._stop.wait()
            except Exception as error:  # noqa: BLE001 - whatever the SDK, the program or the network does
                if not self.opened.is_set():
                    self.login_needed = http.error if isinstance(http.error, LoginNeeded) else None
                    verb = "started" if self._server.url is None else "reached"
                    self.open_error = f"could not be {verb}: {str(http) or _reason(error)}"
                elif not self._stop.is_set():
                    logger.warning("The session with MCP server %r broke: %s", self._server.name, _reason(error))
            finally:
                if not self.opened.is_set() and not self.open_error:
                    self.open_error = (
                        f"did not answer within {limit:g} s" if not self.is_over else "was not started any more"
                    )
                self.is_over = True
                self.opened.set()


async def _unchecked(name: str, result: CallToolResult) -> None:
    """Accept any result."""


def _reason(error: BaseException) -> str:
    """An error as a phrase; of a group of errors, the first."""
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED

    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, FileNotFoundError):
        return f"there is no {error.filename}"
    if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
        return "it ended at once"
    return " ".join((str(error) or type(error).__name__).split())[:300]
