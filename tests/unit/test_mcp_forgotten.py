"""MCP servers that forget their sessions: what counts as that, whether a call is repeated, and what the model is told."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from mcp import MCPError
from mcp.types import CONNECTION_CLOSED, INVALID_PARAMS, METHOD_NOT_FOUND

from mulligan import McpServer
from mulligan.activities.mcp.call_failure import failure_of, refusal_of
from mulligan.activities.mcp.forgotten_session import Refusal, cannot_have_run, forgotten
from mulligan.activities.mcp.http_client import HttpOutcome
from mulligan.activities.mcp.readable_message import IS_UNREADABLE
from mulligan.mcp import MissingVariable

SAYS = "Session not found"
REFUSALS: list[tuple[Refusal, str, bool]] = [
    # Of a status alone.
    (Refusal(404, ""), "yes", True),
    (Refusal(410, "<h1>gone</h1>"), "yes", True),
    (Refusal(400, ""), "perhaps", True),
    (Refusal(401, ""), "perhaps", True),
    (Refusal(409, ""), "perhaps", False),
    (Refusal(500, ""), "perhaps", False),
    (Refusal(503, ""), "perhaps", False),
    (Refusal(429, "too many sessions, yours is not found"), "no", False),
    (Refusal(408, ""), "no", False),
    # Of what the server says.
    (Refusal(400, "Bad Request: No valid session ID provided", -32_000), "yes", True),
    (Refusal(400, "Bad Request: Server not initialized", -32_000), "yes", True),
    (Refusal(400, "Received request before initialization was complete", INVALID_PARAMS), "yes", True),
    (Refusal(400, "Mcp-Session-Id header is required", -32_000), "yes", True),
    (Refusal(401, "session expired"), "yes", True),
    (Refusal(400, "unknown tool", INVALID_PARAMS), "no", True),
    (Refusal(404, "there is no such method", METHOD_NOT_FOUND), "no", True),
    (Refusal(500, "the session is gone", -32_000), "perhaps", False),
    (Refusal(503, "unknown session"), "perhaps", False),
    # By a message of the protocol: certain only where the server refuses everything else, too.
    (Refusal(None, SAYS, -32_600), "perhaps", True),
    (Refusal(None, "Invalid session ID"), "perhaps", True),
    (Refusal(None, "the shop is closed"), "no", True),
    (Refusal(None, "Error executing tool pay: the checkout session expired"), "perhaps", False),
    (Refusal(None, SAYS + " " + "x" * 200), "perhaps", False),
    (Refusal(None, SAYS + " " + "x" * 900), "no", False),
    (Refusal(None, SAYS, is_streamed=True), "perhaps", False),
    # Without a session there is none to forget.
    (Refusal(404, SAYS, has_session=False), "no", True),
    (Refusal(None, SAYS, has_session=False), "no", True),
]


@pytest.mark.parametrize(("refusal", "is_forgotten", "has_not_run"), REFUSALS)
def test_a_refusal_says_whether_the_session_is_forgotten_and_whether_the_call_may_have_run(
    refusal: Refusal, is_forgotten: str, has_not_run: bool
) -> None:
    """A call that has begun may have run, whatever the server says then."""
    assert forgotten(refusal) == is_forgotten
    assert cannot_have_run(refusal, has_begun=False) == has_not_run
    assert not cannot_have_run(refusal, has_begun=True)


WEB, PROGRAM = McpServer("web", url="http://a/mcp"), McpServer("lent", command=["run"])
NO_MESSAGE = "Server returned an error response"
TOLD: dict[str, tuple[McpServer, MCPError, HttpOutcome, str, str]] = {
    "nothing answers": (
        WEB, MCPError(-32_603, NO_MESSAGE), HttpOutcome(error=httpx2.ConnectError("no")),
        "did not get the call: nothing answers there (ConnectError). The call has not run.", "McpUnavailable",
    ),
    "no variable": (
        WEB, MCPError(-32_603, NO_MESSAGE), HttpOutcome(error=MissingVariable("no A")),
        "did not get the call: no A. The call has not run.", "McpUnavailable",
    ),
    "it breaks off": (
        WEB, MCPError(-32_603, NO_MESSAGE), HttpOutcome(error=httpx2.ReadError("no")),
        "did not give a result: the connection broke off (ReadError). The call may or may not have run.", "McpUnavailable",
    ),
    "a gateway": (
        WEB, MCPError(-32_603, NO_MESSAGE), HttpOutcome(status=502),
        "did not give a result: it answered with HTTP 502. The call may or may not have run.", "McpUnavailable",
    ),
    "a stream ends": (
        WEB, MCPError(CONNECTION_CLOSED, "SSE stream ended without a response"), HttpOutcome(is_streamed=True),
        "it may or may not have done the work.", "McpUnavailable",
    ),
    "a program ends": (
        PROGRAM, MCPError(CONNECTION_CLOSED, "Connection closed"), HttpOutcome(),
        "it may or may not have done the work. It is started again with the next call.", "McpUnavailable",
    ),
    "its answer cannot be read": (
        WEB, MCPError(-32_603, "it is empty", data=IS_UNREADABLE), HttpOutcome(),
        "answered, but its answer cannot be read: it is empty. The call may have run.", "McpError",
    ),
    "it refuses": (
        WEB, MCPError(INVALID_PARAMS, "no such tool"), HttpOutcome(), "refused the call: no such tool.", "McpError",
    ),
    "its tool raises": (
        WEB, MCPError(0, "not today"), HttpOutcome(), "answered the call with an error: not today.", "McpError",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TOLD)
def test_what_the_model_is_told_of_a_failed_call_is_true(case: str) -> None:
    """Whether it may have run, above all. A server at a URL is not started by the worker."""
    server, error, http, says, kind = TOLD[case]
    failure = failure_of(error, http, server)
    assert str(failure).startswith(f"The MCP server `{server.name}` ")
    assert says in str(failure)
    assert type(failure).__name__ == kind
    assert ("started again" in str(failure)) == (case == "a program ends")


@pytest.mark.parametrize(
    ("server", "error", "http", "refusal"),
    [
        (WEB, MCPError(-32_603, NO_MESSAGE), HttpOutcome(400, words="no session", has_session=True), Refusal(400, "no session", -32_603)),
        (WEB, MCPError(-32_001, SAYS), HttpOutcome(404, words="{…}", has_session=True), Refusal(404, SAYS, -32_001)),
        (WEB, MCPError(-32_001, SAYS), HttpOutcome(has_session=False), Refusal(None, SAYS, -32_001, has_session=False)),
        (PROGRAM, MCPError(-32_001, SAYS), HttpOutcome(), Refusal(None, SAYS, -32_001)),
        (PROGRAM, MCPError(CONNECTION_CLOSED, "Connection closed"), HttpOutcome(), None),
        (WEB, MCPError(-32_603, NO_MESSAGE), HttpOutcome(error=httpx2.ConnectError("no"), has_session=True), None),
        (WEB, MCPError(-32_603, SAYS, data=IS_UNREADABLE), HttpOutcome(has_session=True), None),
    ],
)  # fmt: skip
def test_only_what_a_server_answered_is_a_refusal(server: McpServer, error: MCPError, http: Any, refusal: Any) -> None:
    assert refusal_of(error, http, server) == refusal
