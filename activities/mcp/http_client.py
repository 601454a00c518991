"""HTTP for MCP: what goes wrong with one request is that request's alone, and the session goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import httpx2

from mulligan.mcp import MissingVariable

_CONNECT_TIMEOUT = 30.0
"""Seconds, also for writing. Reading has no limit of its own: a call's is the tool's timeout, and a stream may be silent."""
_SESSION = "mcp-session-id"


@dataclass
class HttpOutcome:
    """What became of the HTTP requests of one call: the SDK's own errors do not say."""

    status: int | None = None
    error: Exception | None = None
    is_expired: bool = False
    """The server does not know the session any more, so it has done nothing."""

    def __str__(self) -> str:
        if isinstance(self.error, (httpx2.ConnectError, httpx2.TimeoutException)):
            return f"nothing answers there ({type(self.error).__name__})"
        if self.error is not None:
            # Not in the words of the error: it may quote the header that it did not like.
            ours = isinstance(self.error, MissingVariable)
            return str(self.error) if ours else f"the request could not be sent ({type(self.error).__name__})"
        return f"it answered with HTTP {self.status}" if self.status is not None else ""


_SEEN: ContextVar[HttpOutcome | None] = ContextVar("seen", default=None)


@contextmanager
def record_http() -> Iterator[HttpOutcome]:
    """What is requested in the block is seen: the SDK sends each message in the context of its caller."""
    seen = HttpOutcome()
    token = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(token)


class McpHttpClient(httpx2.AsyncClient):
    """A client whose headers are asked for at each request, and to which a broken connection is an answer.

    The SDK's transport ends with the first request that raises, and takes all other calls of the session with it.
    """

    def __init__(self, header_values: Callable[[], Awaitable[dict[str, str]]]) -> None:
        super().__init__(timeout=httpx2.Timeout(_CONNECT_TIMEOUT, read=None))
        self._header_values = header_values

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; 503 where that could not be done."""
        seen = _SEEN.get() or HttpOutcome()
        try:
            request.headers.update(await self._header_values())
            response = await super().send(request, **options)
        except Exception as error:  # noqa: BLE001 - also what a user's function raises
            seen.error = error
            return httpx2.Response(503, request=request)
        if request.method == "POST":  # a GET opens a stream that a server need not have
            seen.status = response.status_code if response.status_code >= 400 else None
            seen.is_expired = response.status_code == 404 and _SESSION in request.headers
        return response
