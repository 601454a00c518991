"""The HTTP client of MCP sessions: a request that fails does not end the session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import httpx2

from mulligan.activities._answer_limit import limit_response
from mulligan.activities.mcp.response_limit import MAX_RESPONSE_BYTES
from mulligan.mcp import MissingVariable
from mulligan.mcp_auth import LoginNeeded

_CONNECT_TIMEOUT = 30.0
"""Seconds to connect, and to write. Reading has no limit here: the tool's timeout limits a call."""
_SESSION_HEADER = "mcp-session-id"


@dataclass
class HttpOutcome:
    """The outcome of the HTTP requests of one MCP call, which the SDK's own errors do not contain."""

    status: int | None = None
    error: Exception | None = None
    is_expired: bool = False
    """The server does not know the session any more, so it has not executed the call."""

    def __str__(self) -> str:
        if isinstance(self.error, (httpx2.ConnectError, httpx2.TimeoutException)):
            return f"nothing answers there ({type(self.error).__name__})"
        if self.error is not None:
            if isinstance(self.error, httpx2.DecodingError):
                return f"its answer cannot be read: {self.error}"
            # Without the error's own message: it may quote the value of a header.
            is_ours = isinstance(self.error, (LoginNeeded, MissingVariable))
            return str(self.error) if is_ours else f"the request could not be sent ({type(self.error).__name__})"
        return f"it answered with HTTP {self.status}" if self.status is not None else ""


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
            if not stream or response.headers.get("content-type", "").lower().startswith("application/json"):
                try:
                    await response.aread()
                finally:
                    await response.aclose()
        except Exception as error:  # noqa: BLE001 - also what a user's function raises
            outcome.error = error
            return httpx2.Response(503, request=request)
        if request.method == "POST":  # a GET opens a stream, which servers may refuse
            outcome.status = response.status_code if response.status_code >= 400 else None
            outcome.is_expired = response.status_code == 404 and _SESSION_HEADER in request.headers
        return response
