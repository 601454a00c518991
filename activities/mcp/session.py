"""The session with an MCP server: a task of its own runs it, and it is opened again after it has ended."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import Context
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from mulligan.activities._answer_limit import ResponseTooLarge
from mulligan.activities.mcp.elicitation import (
    MAX_ROUNDS,
    Ask,
    CallInProgress,
    CallsInProgress,
    questions_of,
    responses_of,
    url_questions_of,
)
from mulligan.activities.mcp.http_client import record_http
from mulligan.activities.mcp.response_limit import IS_TOO_LARGE, MAX_RESPONSE_BYTES, TOO_LARGE
from mulligan.activities.mcp.server_log import Stderr
from mulligan.activities.mcp.transport import connect_to
from mulligan.activities.tool_running.thread_bounds import TookTooLong
from mulligan.durations import seconds
from mulligan.mcp import McpError, McpServer, McpUnavailable
from mulligan.mcp_auth import LoginNeeded
from mulligan.schema.schema_cost import check_size

if TYPE_CHECKING:  # imported with the first session otherwise: most workers have no MCP server
    from mcp.client import Client
    from mcp.shared.dispatcher import ProgressFnT
    from mcp.types import CallToolResult, Tool

    from mulligan.wire.questions import Questions, Replies

T = TypeVar("T")
FaultsBy = Callable[[dict[str, Any], Any], Awaitable[list[tuple[str, str]]]]
logger = logging.getLogger("mulligan.mcp")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds in which a server that could not be started is not started again; they double each time."""
CLOSE_LIMIT = 10.0
"""Seconds that a session may take to close: the SDK gives a program two to end, and two more until it is killed."""
FIRST_POLL, LONGEST_POLL = 0.05, 5.0
"""Seconds until a server that is not done, and asks nothing, is asked again; they double each time."""
MAX_PAGES = 100
_NO_MESSAGE = "Server returned an error response"
"""The SDK's message where a server sent none. Its code is that of any internal error, also of one that a server describes:
so the text decides which of two is shown."""
_TOO_LARGE_EVENT = "SSE stream failed: Server-sent event exceeded"
"""The beginning of the SDK's message where a server's event is too long. Its code is that of any broken connection, and the
exception (`httpx2.SSEError`) is caught in the SDK. Where the text is another one, the call fails as unavailable."""
_TELL = " Tell the user, and continue without it."


class McpSession:
    """The session of a worker with a server. It opens at the first use, and again at the next use after it has ended."""

    def __init__(self, server: McpServer, faults_by: FaultsBy) -> None:
        """`faults_by` checks structured results by schemas whose validation may take long."""
        self._server, self._faults_by = server, faults_by
        self._current: _Session | None = None
        self._running: set[_Session] = set()
        """The current session, and earlier ones whose programs have not ended yet."""
        self._failures, self._not_before = 0, 0.0

    async def tools(self) -> list[Tool]:
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
                raise McpUnavailable(self._message("did not list its tools in time")) from None
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
            McpError: the server refused the call, or violated the protocol.
        """
        await self._open()
        limit = seconds(self._server.timeout)
        call = _ToolCall(tool, arguments, progress, replies, may_ask=self._server.questions)
        try:
            async with asyncio.timeout(limit) as clock:
                return await self._use(call.run, CallInProgress(ask, clock))
        except TimeoutError:
            raise TookTooLong(limit) from None

    async def close(self) -> None:
        """Close the session, and end its program."""
        await asyncio.gather(*(session.close() for session in self._running))

    async def _use(self, request: Callable[[Client], Awaitable[T]], call: CallInProgress | None = None) -> T:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        session = await self._open()
        for may_retry in (True, False):
            with record_http() as http, session.in_use(call):
                try:
                    return await request(session.client)
                except McpError as error:
                    raise type(error)(self._message(f"cannot be used like this: {error}", "")) from error
                except MCPError as error:
                    if http.is_expired and may_retry:
                        session.end()
                        session = await self._open()
                        continue
                    is_event = error.code == CONNECTION_CLOSED and error.message.startswith(_TOO_LARGE_EVENT)
                    is_too_large = is_event or error.data == IS_TOO_LARGE
                    if is_too_large or isinstance(http.error, ResponseTooLarge):
                        raise McpError(self._message(TOO_LARGE, " Ask it for less at a time.")) from error
                    if isinstance(http.error, LoginNeeded):
                        raise McpError(self._message(f"did not take the call: {http}", _TELL)) from error
                    if http.error is not None or (http.status or 0) >= 500:
                        raise McpUnavailable(self._message(f"rejected the call: {http}")) from error
                    if error.code == CONNECTION_CLOSED:
                        raise McpUnavailable(
                            f"The MCP server `{self._server.name}` ended, or broke off, before it answered: it may or may "
                            "not have done the work. It is started again with the next call."
                        ) from error
                    why = str(http) if http.status and error.message == _NO_MESSAGE else error.message
                    raise McpError(self._message(f"refused the call: {why}", "")) from error
                except (RuntimeError, ValueError) as error:
                    # The SDK raises these for an answer that violates the protocol, or the tool's own output schema.
                    text = str(error).split("\n")[0]
                    raise McpError(self._message(f"gave an answer that is not valid: {text}", "")) from error
        raise AssertionError("a session is tried twice")

    async def _open(self) -> _Session:
        """Return the open session, and open one if there is none.

        Raises:
            McpUnavailable: it could not be opened, now or at an attempt so recent that it is not repeated.
        """
        session = self._current
        if session is None or session.is_over:
            if session is not None and session.open_error and time.monotonic() < self._not_before:
                raise McpUnavailable(self._message(session.open_error)) from session.login_needed
            session = self._current = _Session(self._server, self._faults_by)
            self._running = {each for each in self._running if not each.task.done()} | {session}
        await session.opened.wait()
        if session.open_error:
            if session.is_error_logged:
                raise McpUnavailable(self._message(session.open_error)) from session.login_needed
            session.is_error_logged = True
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._failures)
            self._failures, self._not_before = self._failures + 1, time.monotonic() + pause
            last = f" Its last words: {session.stderr.last_line}" if session.stderr.last_line else ""
            logger.warning("MCP server %r %s.%s", self._server.name, session.open_error, last)
            raise McpUnavailable(self._message(session.open_error)) from session.login_needed
        self._failures = 0
        return session

    def _message(self, what: str, advice: str = " Continue without it, or try it again later.") -> str:
        return f"The MCP server `{self._server.name}` {what.rstrip('.')}.{advice}"


@dataclass(frozen=True)
class _ToolCall:
    """A request to call a tool. `replies`: what people replied to the questions that the server asked before."""

    tool: str
    arguments: dict[str, Any]
    progress: ProgressFnT
    replies: Replies | None
    may_ask: bool

    async def run(self, client: Client) -> CallToolResult | Questions:
        """Call the tool until the server has a result, or questions.

        Raises:
            McpError: the server asks for what it is not offered, or does not stop asking.
            MCPError: the server refused the call.
        """
        from mcp.shared.exceptions import MCPError
        from mcp.types import CallToolResult
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        responses, state = None, None
        if self.replies is not None and is_modern:
            responses, state = responses_of(self.replies), self.replies.state
        elif self.replies is not None and any(reply.action != "accept" for reply in self.replies.replies.values()):
            raise McpError("it needs a person to open a page first, and nobody agreed to that")
        pause = FIRST_POLL
        while True:
            try:
                result = await self._send(client, responses, state)
            except MCPError as error:
                questions = url_questions_of(error)
            else:
                if isinstance(result, CallToolResult):
                    return result
                questions = questions_of(result)
            if questions.questions:
                if not self.may_ask:
                    raise McpError("it asked a person, which is not offered to it")
                if self.replies is not None and self.replies.round >= MAX_ROUNDS:
                    raise McpError(f"it asked people {MAX_ROUNDS} times in one call, and asks again")
                return questions
            # The server is not done, and wants to be asked again with its state.
            await asyncio.sleep(pause)
            pause = min(LONGEST_POLL, pause * 2)
            responses, state = None, questions.state

    async def _send(self, client: Client, responses: dict[str, Any] | None, state: str | None) -> Any:
        from mcp.shared.exceptions import MCPError
        from mcp.types import HEADER_MISMATCH

        for may_list in (True, False):
            try:
                return await client.session.call_tool(
                    self.tool,
                    self.arguments,
                    progress_callback=self.progress,
                    input_responses=responses,
                    request_state=state,
                    allow_input_required=True,
                )
            except MCPError as error:
                if error.code != HEADER_MISMATCH or not may_list:
                    raise
                # The tool's schema has changed: the headers of its calls are derived from it.
                await list_tools(client)
        raise AssertionError("a call is sent twice")


class _Session:
    """One session. One task opens and closes it: the SDK's cancel scopes must be left by the task that entered them."""

    def __init__(self, server: McpServer, faults_by: FaultsBy) -> None:
        self._server, self._faults_by = server, faults_by
        self._stop = asyncio.Event()
        self._scope = anyio.CancelScope()
        self.opened = asyncio.Event()
        self.is_over = self.is_error_logged = False
        self.requests_in_progress = 0
        self.open_error = ""
        """Why it could not be opened; empty if it is open."""
        self.login_needed: LoginNeeded | None = None
        """The same, if it needs a login."""
        self.client: Client
        self.listed: list[Tool] = []
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

    async def _validate_result(self, name: str, result: CallToolResult) -> None:
        """Check a structured result by the schema that the tool had when the session opened.

        Raises:
            RuntimeError: it is not valid.
        """
        schema = next((tool.output_schema for tool in self.listed if tool.name == name), None)
        if schema is None:
            return
        if result.structured_content is None:
            raise RuntimeError(f"Tool {name} has an output schema but did not return structured content")
        try:
            check_size(schema)
        except TypeError as error:
            raise RuntimeError(f"Invalid schema for tool {name}: it {error}") from error
        if faults := await self._faults_by(schema, result.structured_content):
            path, says = faults[0]
            raise RuntimeError(f"Invalid structured content returned by tool {name}: {path or 'it'} {says}")

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
                        # The SDK's own check runs a server's patterns on the worker's event loop.
                        client.session.validate_tool_result = self._validate_result  # type: ignore[method-assign]
                        self._scope.deadline = math.inf
                        self.opened.set()
                        await self._stop.wait()
            except Exception as error:  # noqa: BLE001 - whatever the SDK, the program or the network does
                if not self.opened.is_set():
                    self.login_needed = http.error if isinstance(http.error, LoginNeeded) else None
                    self.open_error = f"could not be started: {str(http) or _reason(error)}"
                elif not self._stop.is_set():
                    logger.warning("The session with MCP server %r broke: %s", self._server.name, _reason(error))
            finally:
                if not self.opened.is_set() and not self.open_error:
                    self.open_error = (
                        f"did not answer within {limit:g} s" if not self.is_over else "was not started any more"
                    )
                self.is_over = True
                self.opened.set()


async def list_tools(client: Client) -> list[Tool]:
    """List all pages of a server's tools, until they are larger than one response may be."""
    tools: list[Tool] = []
    cursor: str | None = None
    room = MAX_RESPONSE_BYTES
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        room -= len(page.model_dump_json())
        if room < 0:
            logger.warning("An MCP server's list of tools is too long; %d of them are offered.", len(tools))
            break
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


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
