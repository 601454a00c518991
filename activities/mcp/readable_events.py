"""The events of an HTTP response with each message as it can be read: the SDK ends a call at the first that it cannot."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx2

from mulligan.activities.mcp.readable_message import readable_messages

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class ReadableEvents(httpx2.AsyncByteStream):
    """A stream of server-sent events.

    Args:
        stream: What the server sends.
        most_bytes: The limit of an event. A longer one, and what follows it, is passed on unread: the SDK refuses it.
    """

    def __init__(self, stream: httpx2.AsyncByteStream, most_bytes: int) -> None:
        self._stream, self._most_bytes = stream, most_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest = bytearray()
        is_read = True
        async for chunk in self._stream:
            if not is_read:
                yield chunk
                continue
            searched = max(0, len(rest) - 3)
            rest += chunk
            while end := _END.search(rest, searched):
                yield readable_event(bytes(rest[: end.start()]))
                del rest[: end.end()]
                searched = 0
            if len(rest) > self._most_bytes:
                is_read = False
                yield bytes(rest)
                rest.clear()
        if rest:
            yield bytes(rest)

    async def aclose(self) -> None:
        """Close the server's stream."""
        await self._stream.aclose()


def readable_event(event: bytes) -> bytes:
    """An event with its message as it can be read. What is no message is left out; the event's other fields stay."""
    lines = event.splitlines()
    data = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    others = [line for line in lines if not line.startswith(b"data")]
    whole = b"\n".join(data)
    is_message = all(line[6:].strip() == b"message" for line in others if line.startswith(b"event:"))
    if not whole.strip() or not is_message:
        return event + b"\n\n"
    messages = readable_messages(whole) or [""]
    return b"".join(b"\n".join([*others, b"data: " + message.encode()]) + b"\n\n" for message in messages)
