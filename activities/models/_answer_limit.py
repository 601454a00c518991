"""The response of a model's endpoint as the worker reads it: limited, and without the secrets that the request had."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Container, Iterator
from functools import partial
from typing import Any

import httpx2

from mulligan.activities.echoed_secrets import CleanedStream, EchoedSecrets
from mulligan.activities.models._read_response import EVENT_STREAM, MAX_EVENT_BYTES, SECRETS
from mulligan.endpoint import Endpoint

MAX_STREAM_BYTES = 64_000_000
"""Bytes of a streamed response. One of 128,000 tokens has about 50 MB, as each token comes in an event of its own."""
_PIECE_BYTES = 1_000_000
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


def event_hooks(endpoint: Endpoint | None) -> dict[str, list[Any]]:
    """The `event_hooks` of a client of model endpoints. A header whose value refers to a variable is a secret."""
    headers = endpoint.headers if endpoint else {}
    names = frozenset(name.lower() for name, value in headers.items() if "${" in value)
    return {"response": [partial(limit_response, secret_headers=names)]}


async def limit_response(response: httpx2.Response, secret_headers: Container[str] = ()) -> None:
    """Limit a response whose body is not read yet: of an error, too. Reading more raises `httpx2.DecodingError`.

    It is decompressed here, in pieces: a kilobyte may become a megabyte. Secrets of its request are replaced in its headers
    and in its body, whatever its status: some servers quote the key that they got.

    Raises:
        httpx2.DecodingError: its encoding is one that was not requested.
    """
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity", "gzip", "deflate"):
        raise httpx2.DecodingError(f"it has the encoding {encoding[:40]!r}, which was not requested")
    response.headers.pop("content-encoding", None)
    is_stream = EVENT_STREAM in response.headers.get("content-type", "").lower()
    stream = response.stream
    assert isinstance(stream, httpx2.AsyncByteStream)
    most_bytes = MAX_STREAM_BYTES if is_stream else MAX_EVENT_BYTES
    secrets = EchoedSecrets(response.request.headers, secret_headers)
    secrets.clean_headers(response.headers)
    response.extensions[SECRETS] = secrets
    limited = _Limited(stream, most_bytes, is_compressed=encoding in ("gzip", "deflate"))
    response.stream = CleanedStream(limited, secrets) if secrets.values else limited


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, most_bytes: int, *, is_compressed: bool) -> None:
        self._stream, self._most_bytes = stream, most_bytes
        self._decompressor = zlib.decompressobj(_GZIP_OR_ZLIB) if is_compressed else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            for piece in self._decompressed(chunk):
                size += len(piece)
                if size > self._most_bytes:
                    raise httpx2.DecodingError(f"it has more than {self._most_bytes:,} bytes")
                yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _decompressed(self, chunk: bytes) -> Iterator[bytes]:
        if self._decompressor is None:
            yield chunk
            return
        try:
            while chunk:
                yield self._decompressor.decompress(chunk, _PIECE_BYTES)
                chunk = self._decompressor.unconsumed_tail
        except zlib.error as error:
            raise httpx2.DecodingError(f"it is not what its encoding says ({error})") from None
