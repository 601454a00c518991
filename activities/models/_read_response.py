"""Reading what a model's endpoint sends back: one JSON object, or server-sent events from which one is put together."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from mulligan.activities.models.protocol import Unavailable
from mulligan.values import well_formed

if TYPE_CHECKING:
    import httpx2

EVENT_STREAM = "text/event-stream"
DONE = "[DONE]"


class Pieces(Protocol):
    """An answer that comes in pieces. What it is put together to is just what the endpoint sends unasked for pieces."""

    asks: ClassVar[dict[str, Any]]
    """The fields of a request that ask for pieces."""

    def take(self, piece: dict[str, Any]) -> None:
        """Add the next one."""
        ...

    def done(self) -> None:
        """The endpoint said that this was all."""
        ...

    def whole(self) -> dict[str, Any]:
        """The answer.

        Raises:
            Unavailable: it broke off.
        """
        ...


def read(answer: str) -> dict[str, Any]:
    """An answer in one piece.

    Raises:
        Unavailable: it is no JSON object.
    """
    data = _object(answer)
    if data is None:
        raise Unavailable(f"the endpoint's answer is no JSON object; it begins {answer[:80]!r}")
    return _mended(data) if "\\u" in answer else data


async def read_pieces(response: httpx2.Response, pieces: Pieces) -> dict[str, Any]:
    """An answer as it comes; one that comes whole, though pieces were asked for, is read as such.

    Raises:
        Unavailable: it broke off, or is not JSON.
        httpx2.HTTPError: the connection broke.
    """
    if EVENT_STREAM not in response.headers.get("content-type", "").lower():
        await response.aread()
        if not response.text.startswith(("data:", "event:", ":")):  # some servers call their events JSON
            return read(response.text)
    escaped = False
    async for data in _events(response):
        if data == DONE:
            pieces.done()
            continue  # to the end, so that the connection can be used again
        piece = _object(data)
        if piece is None:
            raise Unavailable(f"the endpoint's answer has a piece that is no JSON object; it begins {data[:80]!r}")
        escaped = escaped or "\\u" in data
        pieces.take(piece)
    whole = pieces.whole()
    return _mended(whole) if escaped else whole


async def _events(response: httpx2.Response) -> AsyncIterator[str]:
    """The data of each event (WHATWG HTML, 9.2). Lines are cut as bytes: `str.splitlines` would cut within JSON texts."""
    data: list[str] = []
    async for line in _lines(response):
        if not line and data:
            yield "\n".join(data).strip()
            data = []
        elif line.startswith(b"data:"):
            data.append(line[5:].decode("utf-8", "replace"))
    if data:
        yield "\n".join(data).strip()


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    begun: list[bytes] = []
    async for chunk in response.aiter_bytes():
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            yield b"".join((*begun, line)).rstrip(b"\r")
            begun = []
        begun.append(rest)
    yield b"".join(begun)


def _object(text: str) -> dict[str, Any] | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _mended(data: Any) -> Any:
    """Without what JSON can spell and other parts of the way cannot carry: lone surrogates, NUL."""
    if isinstance(data, str):
        return str(well_formed(data)).replace("\0", "\ufffd")
    if isinstance(data, list):
        return [_mended(item) for item in data]
    if isinstance(data, dict):
        return {_mended(name): _mended(value) for name, value in data.items()}
    return data
