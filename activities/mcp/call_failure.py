"""What a model is told of a call that has no result: why, and whether it may have run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mulligan.activities._answer_limit import ResponseTooLarge
from mulligan.activities.mcp.forgotten_session import Refusal
from mulligan.activities.mcp.http_client import HttpOutcome
from mulligan.activities.mcp.readable_message import IS_UNREADABLE
from mulligan.activities.mcp.response_limit import IS_TOO_LARGE, TOO_LARGE
from mulligan.mcp import McpError, McpServer, McpUnavailable
from mulligan.mcp_auth import LoginNeeded

if TYPE_CHECKING:
    from mcp.shared.exceptions import MCPError

LATER = " Continue without it, or try it again later."
NOT_RUN = " The call has not run."
MAY_HAVE_RUN = " The call may or may not have run."
_NO_MESSAGE = "Server returned an error response"
"""The SDK's message where a server sent none. Its code is that of any internal error, also of one that a server describes:
so the text decides which of two is shown."""
_TOO_LARGE_EVENT = "SSE stream failed: Server-sent event exceeded"
"""The beginning of the SDK's message where a server's event is too long. Its code is that of any broken connection, and the
exception (`httpx2.SSEError`) is caught in the SDK. Where the text is another one, the call fails as unavailable."""

_NOT_PARSED = "Failed to parse "
"""The beginning of the SDK's messages where it cannot read an answer."""


def message(server: McpServer, what: str, advice: str = LATER) -> str:
    """A sentence about a server, and what follows from it."""
    return f"The MCP server `{server.name}` {what.rstrip('.')}.{advice}"


def failure_of(error: MCPError, http: HttpOutcome, server: McpServer) -> McpError:
    """The failure of a request."""
    from mcp.types import CONNECTION_CLOSED

    is_broken = error.code == CONNECTION_CLOSED
    is_too_large = error.data == IS_TOO_LARGE or (is_broken and error.message.startswith(_TOO_LARGE_EVENT))
    if is_too_large or isinstance(http.error, ResponseTooLarge):
        return McpError(message(server, TOO_LARGE, " The call ran. Ask it for less at a time."))
    if isinstance(http.error, LoginNeeded):
        tell = " Tell the user, and continue without it."
        return McpError(message(server, f"did not take the call: {http}", NOT_RUN + tell))
    if http.error is not None and not http.was_sent:
        return McpUnavailable(message(server, f"did not get the call: {http}", NOT_RUN + LATER))
    if http.error is not None or (http.status or 0) >= 500:
        return McpUnavailable(message(server, f"did not give a result: {http}", MAY_HAVE_RUN + LATER))
    if is_broken:
        next_call = " It is started again with the next call." if server.url is None else ""
        what = "ended, or broke off, before it answered: it may or may not have done the work"
        return McpUnavailable(message(server, what, next_call))
    if error.data == IS_UNREADABLE or error.message.startswith(_NOT_PARSED):
        what = f"answered, but its answer cannot be read: {error.message}"
        return McpError(message(server, what, " The call may have run."))
    why = str(http) if http.status and error.message == _NO_MESSAGE else error.message
    return McpError(message(server, f"{_refused(error, http)}: {why}", ""))


def refusal_of(error: MCPError, http: HttpOutcome, server: McpServer) -> Refusal | None:
    """How the server refused the request; None where it did not answer."""
    from mcp.types import CONNECTION_CLOSED

    if http.error is not None or error.code == CONNECTION_CLOSED or error.data in (IS_UNREADABLE, IS_TOO_LARGE):
        return None
    words = http.words if error.message == _NO_MESSAGE else error.message
    has_session = http.has_session if server.url is not None else True
    return Refusal(http.status, words, error.code, is_streamed=http.is_streamed, has_session=has_session)


def _refused(error: MCPError, http: HttpOutcome) -> str:
    """An error of any other code may be the tool's own, after it has begun."""
    from mcp.types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND

    is_refused = http.status is not None or error.code in (INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS)
    return "refused the call" if is_refused else "answered the call with an error"
