"""The response of a model's endpoint or an MCP server as the worker reads it: limited, and without its request's secrets."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Container, Iterator
from functools import partial
from typing import Any

import httpx2

from mulligan.activities.echoed_secrets import EchoedSecrets
from mulligan.activities.models._read_response import EVENT_STREAM, MAX_EVENT_BYTES, SECRETS
from mulligan.endpoint import Endpoint

MAX_STREAM_BYTES = 64_000_000
"""Bytes of a streamed response. One of 128,000 tokens has about 50 MB, as each token comes in an event of its own."""
_PIECE_BYTES = 1_000_000
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class ResponseTooLarge(httpx2.DecodingError):
    """A response has more bytes than its limit."""


def event_hooks(endpoint: Endpoint | None) -> dict[str, list[Any]]:
    """The `event_hooks` of a client of model endpoints. A header whose value refers to a variable is a secret."""
    headers = endpoint.headers if endpoint else {}
    names = frozenset(name.lower() for name, value in headers.items() if "${" in value)
    limit = partial(limit_response, most_bytes=MAX_EVENT_BYTES, most_of_stream=MAX_STREAM_BYTES, secret_headers=names)
    return {"response": [limit]}


async def limit_response(
    response: httpx2.Response, *, most_bytes: float, most_of_stream: float, secret_headers: Container[str] = ()
) -> None:
    """Limit a response whose body is not read yet: of an error, too. Reading more raises `ResponseTooLarge`.

    It is decompressed here, in pieces: a kilobyte may become a megabyte. Secrets of its request are replaced in its headers
    and in its body, whatever its status: some servers quote the key that they got.

    Args:
        response: The response.
        most_bytes: The limit of its body.
        most_of_stream: The limit of its body if it is a stream of events.
        secret_headers: The names of more headers whose values are secrets, in lower case.

    Raises:
        httpx2.DecodingError: its encoding was not requested.
    """
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity", "gzip", "deflate"):
        raise httpx2.DecodingError(f"it has the encoding {encoding[:40]!r}, which was not requested")
    response.headers.pop("content-encoding", None)
    is_stream = EVENT_STREAM in response.headers.get("content-type", "").lower()
    stream = response.stream
    assert isinstance(stream, httpx2.AsyncByteStream)
    secrets = EchoedSecrets(response.request.headers, secret_headers)
    secrets.clean_headers(response.headers)
    response.extensions[SECRETS] = secrets
    limit = most_of_stream if is_stream else most_bytes
    response.stream = _CleanedStream(stream, secrets, limit, is_compressed=encoding in ("gzip", "deflate"))


class _CleanedStream(httpx2.AsyncByteStream):
    def __init__(
        self, stream: httpx2.AsyncByteStream, secrets: EchoedSecrets, most_bytes: float, *, is_compressed: bool
    ) -> None:
        self._stream, self._secrets, self._most_bytes = stream, secrets, most_bytes
        self._is_compressed = is_compressed
        self._decompressor: Any = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, held = 0, b""
        async for chunk in self._stream:
            for piece in self._decompressed(chunk):
                size += len(piece)
                if size > self._most_bytes:
                    raise ResponseTooLarge(f"it has more than {self._most_bytes:,} bytes")
                cleaned, held = self._secrets.clean_bytes(held + piece)
                if cleaned:
                    yield cleaned
        if held:
            yield held

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _decompressed(self, chunk: bytes) -> Iterator[bytes]:
        if not self._is_compressed or not chunk:
            yield chunk
            return
        if self._decompressor is None:
            has_header = chunk[0] & 15 in (8, 15)  # some servers send deflate without zlib's header
            self._decompressor = zlib.decompressobj(_GZIP_OR_ZLIB if has_header else -zlib.MAX_WBITS)
        try:
            while chunk:
                yield self._decompressor.decompress(chunk, _PIECE_BYTES)
                chunk = self._decompressor.unconsumed_tail
        except zlib.error as error:
            raise httpx2.DecodingError(f"it is not what its encoding says ({error})") from None
