"""The streams of a transport with each result in a form that the SDK can read, and each answer at the request it belongs to.

The SDK refuses a whole result for one field that is not as its protocol's version says, also where the call ran.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from mulligan.activities.mcp.readable_message import ANY_VALUE, IS_UNREADABLE, NAMELESS
from mulligan.activities.mcp.readable_result import readable_result
from mulligan.activities.mcp.readable_tools import readable_page

_READERS: dict[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    "tools/list": readable_page,
    "tools/call": readable_result,
}
_OF_TRANSPORT = "SSE stream "
"""The beginning of the messages with which the SDK's transport says that a connection is closed."""
_OLD_VERSION = "2025-11-25"
"""Older versions have the same form. Requests of newer ones name theirs."""


class _OpenRequests:
    """The requests without an answer, and the answers that named none of them."""

    def __init__(self) -> None:
        self._requests: dict[str, tuple[Any, str, str]] = {}
        self._nameless: list[tuple[set[str], Any]] = []

    def add(self, message: Any) -> None:
        """A request was sent."""
        from mcp_types import PROTOCOL_VERSION_META_KEY

        meta = (message.params or {}).get("_meta") or {}
        version = meta.get(PROTOCOL_VERSION_META_KEY, _OLD_VERSION)
        self._requests[str(message.id)] = (message.id, message.method, version)

    def drop(self, request_id: object) -> None:
        """A request was cancelled: it may be answered or not."""
        self._requests.pop(str(request_id), None)

    def read(self, message: Any) -> list[Any]:
        """The messages to pass on for one that arrived."""
        from mcp_types import JSONRPCNotification, JSONRPCRequest

        if isinstance(message, JSONRPCRequest | JSONRPCNotification):
            return [message]
        if message.id is None:
            self._nameless.append((self._candidates(message.error), message.error))
            return self._settled()
        request = self._requests.pop(str(message.id), None)
        return [message if request is None else _readable(message, request), *self._settled()]

    def _candidates(self, error: Any) -> set[str]:
        """The requests that an answer without an id may belong to. Some servers answer notifications, which have none."""
        from mcp_types import PARSE_ERROR

        if error.data == IS_UNREADABLE or error.code == PARSE_ERROR:
            return {*self._requests}
        result = error.data.get(NAMELESS) if isinstance(error.data, dict) else None
        method = _method_of(result) if result else None
        return {key for key, request in self._requests.items() if request[1] == method}

    def _settled(self) -> list[Any]:
        """The answers without an id that can belong to one request only, as answers to it."""
        from mcp_types import JSONRPCError, JSONRPCResponse

        settled = []
        for entry in [*self._nameless]:
            candidates, error = entry
            left = candidates & self._requests.keys()
            if len(left) < 2:
                self._nameless.remove(entry)
            if len(left) == 1:
                request = self._requests.pop(left.pop())
                if isinstance(error.data, dict) and NAMELESS in error.data:
                    answer = JSONRPCResponse(jsonrpc="2.0", id=request[0], result=error.data[NAMELESS])
                    settled.append(_readable(answer, request))
                else:
                    settled.append(JSONRPCError(jsonrpc="2.0", id=request[0], error=error))
        return settled


def _method_of(result: dict[str, Any]) -> str | None:
    """Which request a result without an id is known to answer, by its fields."""
    if "protocolVersion" in result:
        return "initialize"
    if "tools" in result:
        return "tools/list"
    return None if result.get(ANY_VALUE, result) is None else "tools/call"


def _readable(message: Any, request: tuple[Any, str, str]) -> Any:
    from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, JSONRPCResponse

    _, method, version = request
    if isinstance(message, JSONRPCResponse):
        if method in _READERS:
            message.result = _READERS[method](message.result, version)
    elif message.error.code == CONNECTION_CLOSED and not message.error.message.startswith(_OF_TRANSPORT):
        message.error.code = INTERNAL_ERROR  # a server's own error, with a code that the SDK gives another meaning
    return message


class ReadableStream:
    """The messages of a server, with a call of `on_end` at their end: the SDK closes the session then without notice."""

    def __init__(self, read: Any, requests: _OpenRequests, on_end: Callable[[], None] | None) -> None:
        self._read, self._requests, self._on_end = read, requests, on_end
        self._ready: list[Any] = []

    @property
    def last_context(self) -> Any:
        """The context in which the last message was sent, where the transport has it."""
        return getattr(self._read, "last_context", None)

    async def receive(self) -> Any:
        """Return the next message."""
        from mcp.shared.message import SessionMessage

        while not self._ready:
            try:
                item = await self._read.receive()
            except (anyio.EndOfStream, anyio.ClosedResourceError):
                if self._on_end is not None:
                    self._on_end()
                raise
            if isinstance(item, Exception):
                return item
            self._ready = [
                SessionMessage(message, metadata=item.metadata) for message in self._requests.read(item.message)
            ]
        return self._ready.pop(0)

    async def aclose(self) -> None:
        """Receive no more messages."""
        await self._read.aclose()

    def __aiter__(self) -> ReadableStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> ReadableStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class NotedStream:
    """The messages to a server, whose requests are noted."""

    def __init__(self, write: Any, requests: _OpenRequests) -> None:
        self._write, self._requests = write, requests

    async def send(self, item: Any) -> None:
        """Send a message."""
        from mcp_types import JSONRPCNotification, JSONRPCRequest

        message = item.message
        if isinstance(message, JSONRPCRequest):
            self._requests.add(message)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._requests.drop((message.params or {}).get("requestId"))
        await self._write.send(item)

    async def aclose(self) -> None:
        """Send no more messages."""
        await self._write.aclose()

    async def __aenter__(self) -> NotedStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def readable_streams(read: Any, write: Any, on_end: Callable[[], None] | None = None) -> tuple[Any, Any]:
    """Both streams of a transport.

    Args:
        read: The messages of the server.
        write: The messages to it.
        on_end: Called when the server sends no more.
    """
    requests = _OpenRequests()
    return ReadableStream(read, requests, on_end), NotedStream(write, requests)
