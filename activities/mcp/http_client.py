"""The HTTP client of MCP sessions: a request that fails does not end the session."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, cast

import httpx2

from mulligan.activities._answer_limit import limit_response
from mulligan.activities.mcp.readable_events import ReadableEvents
from mulligan.activities.mcp.readable_message import readable_messages
from mulligan.activities.mcp.response_limit import MAX_RESPONSE_BYTES
from mulligan.activities.models._read_response import EVENT_STREAM
from mulligan.mcp import MissingVariable
from mulligan.mcp_auth import LoginNeeded

_CONNECT_TIMEOUT = 30.0
"""Seconds to connect, and to write. Reading has no limit here: the tool's timeout limits a call."""
_SESSION_HEADER = "mcp-session-id"
_MOST_WORDS = 1_000
_AFTER_SENDING = (
    *(httpx2.ReadError, httpx2.WriteError, httpx2.CloseError, httpx2.RemoteProtocolError),
    *(httpx2.ReadTimeout, httpx2.WriteTimeout, httpx2.DecodingError),
)
"""Errors after which the server may have got the request."""


@dataclass
class HttpOutcome:
    """The outcome of the HTTP requests of one MCP call, which the SDK's own errors do not contain."""

    status: int | None = None
    error: Exception | None = None
    words: str = ""
    """What the server wrote beside the status of an error."""
    has_session: bool = False
    """The request named a session."""
    is_streamed: bool = False
    """The answer is a stream of events."""

    @property
    def was_sent(self) -> bool:
        """Whether the server may have got the request."""
        return self.error is None or isinstance(self.error, _AFTER_SENDING)

    def __str__(self) -> str:
        if isinstance(self.error, (httpx2.ConnectError, httpx2.TimeoutException)):
            return f"nothing answers there ({type(self.error).__name__})"
        if self.error is not None:
            if isinstance(self.error, httpx2.DecodingError):
                return f"its answer cannot be read: {self.error}"
            if self.was_sent:
                return f"the connection broke off ({type(self.error).__name__})"
            # Without the error's own message: it may quote the value of a header.
            is_ours = isinstance(self.error, (LoginNeeded, MissingVariable))
            return str(self.error) if is_ours else f"the request could not be sent ({type(self.error).__name__})"
        return f"it answered with HTTP {self.status}" if self.status is not None else ""

    def note(self, request: httpx2.Request, response: httpx2.Response) -> None:
        """Note the response to a message."""
        self.status = response.status_code if response.status_code >= 400 else None
        self.has_session = _SESSION_HEADER in request.headers
        self.is_streamed = self.status is None and _is_stream(response)
        self.words = response.text[:_MOST_WORDS] if self.status is not None and not _is_stream(response) else ""


_OUTCOME: ContextVar[HttpOutcome | None] = ContextVar("mcp_http_outcome", default=None)


@contextmanager
def record_http() -> Iterator[HttpOutcome]:
    """Record the outcome of the requests of this block: the SDK sends each message in the context of its caller."""
    outcome = HttpOutcome()
    token = _OUTCOME.set(outcome)
    try:
        yield outcome
    finally:
        _OUTCOME.reset(token)


class McpHttpClient(httpx2.AsyncClient):
    """A client that computes its headers for each request, and returns status 503 where a request cannot be sent.

    It does not raise: the SDK's transport ends at the first request that raises, and with it all calls of the session.
    """

    def __init__(self, header_values: Callable[[], Awaitable[dict[str, str]]], auth: httpx2.Auth | None = None) -> None:
        timeout = httpx2.Timeout(_CONNECT_TIMEOUT, read=None)
        # The SDK limits each event of a stream, which may last as long as the session.
        limit = partial(limit_response, most_bytes=MAX_RESPONSE_BYTES, most_of_stream=inf)
        headers = {"Accept-Encoding": "gzip, deflate"}
        super().__init__(timeout=timeout, headers=headers, auth=auth, event_hooks={"response": [limit]})
        self._header_values = header_values

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """Send a request, and record its outcome. A JSON response is read here, within its limit."""
        outcome = _OUTCOME.get() or HttpOutcome()
        try:
            request.headers.update(await self._header_values())
            response = await super().send(request, stream=True, **options)
            is_read = not stream or not _is_stream(response)
            if is_read:
                try:
                    await response.aread()
                finally:
                    await response.aclose()
        except Exception as error:  # noqa: BLE001 - also what a user's function raises
            outcome.error = error
            return httpx2.Response(503, request=request)
        if request.method != "POST":  # a GET opens a stream, which servers may refuse
            return response
        outcome.note(request, response)
        request_id = _request_id(request)
        if request_id is None or not response.is_success:
            return response
        if not is_read:
            response.stream = ReadableEvents(cast(httpx2.AsyncByteStream, response.stream), MAX_RESPONSE_BYTES)
            return response
        return _readable(response, request_id)


def _is_stream(response: httpx2.Response) -> bool:
    return EVENT_STREAM in response.headers.get("content-type", "").lower()


def _request_id(request: httpx2.Request) -> int | str | None:
    """The id of the message that a request carries; None for one that has no answer."""
    try:
        message = json.loads(request.content)
    except (ValueError, httpx2.RequestNotRead):
        return None
    is_request = isinstance(message, dict) and "method" in message
    return message.get("id") if is_request else None


def _readable(response: httpx2.Response, request_id: int | str) -> httpx2.Response:
    """The answer to a request, whatever its type, its status of success and its form are."""
    answer = readable_messages(response.content, request_id)[-1]
    headers = {name: value for name, value in response.headers.items() if name == _SESSION_HEADER}
    return httpx2.Response(
        200, headers={**headers, "content-type": "application/json"}, content=answer.encode(), request=response.request
    )
