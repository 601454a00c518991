"""The body of a request while it arrives: bounded in bytes and time, and in the memory for a tenant's requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from mulligan.serve.problems import Problem
from mulligan.serve.tenant_shares import TenantShares

BODY_BYTES = 16_000_000
"""Bytes of a request's body: a long conversation is 64 MB at most, and is compressed for Temporal."""
SECONDS_OF_SILENCE = 1.0
"""After which nothing more is expected of a client that has been answered."""
MOST_DROPPED = 8
"""How many times the limit of a body is read and dropped, so that its sender sees the response."""
_SCOPE = "mulligan.body"
_CLOSE = {"Connection": "close"}


@dataclass(frozen=True)
class BodyLimits:
    """Limits of bodies. `most_bytes`: of one. `seconds`: until it is complete. `most_held`: bytes of those
    together that have not been parsed.
    """

    most_bytes: int = BODY_BYTES
    seconds: float = 60.0
    most_held: int = 256_000_000


class ArrivingBody:
    """A body, as the application receives it. `tenant`: whose memory it needs; None is bounded by the limit of all only."""

    def __init__(self, limits: BodyLimits, held: TenantShares, scope: Scope, receive: Receive, send: Send) -> None:
        self.tenant: str | None = None
        self._limits, self._all_held, self._receive, self._send = limits, held, receive, send
        self._ends = asyncio.get_running_loop().time() + limits.seconds
        self._bytes = self._held = 0
        self._is_open = True
        self._is_arriving = bool({b"content-length", b"transfer-encoding"} & {name for name, _ in scope["headers"]})

    @contextmanager
    def of_request(self, scope: Scope) -> Iterator[None]:
        """Be the body of the request with this ASGI scope, while the block runs."""
        scope[_SCOPE] = self
        try:
            yield
        finally:
            self._give_back()

    @staticmethod
    def forget(request: Request) -> None:
        """Say that a request's body has been parsed, so that others may take its bytes of memory."""
        request.scope[_SCOPE]._give_back()

    async def receive(self) -> Message:
        """ASGI's `receive`.

        Raises:
            Problem: the body is too large or too slow, or too many others arrive.
        """
        if not self._is_open:
            return await self._next()
        try:
            async with asyncio.timeout_at(self._ends):
                message = await self._next()
        except TimeoutError:
            if not self._is_open:  # the response has begun meanwhile
                return {"type": "http.disconnect"}
            sentence = (
                f"The body has not arrived within {self._limits.seconds:g} seconds; send it faster, or send less."
            )
            raise Problem(408, "too_slow", sentence, _CLOSE) from None
        self._count(len(message.get("body", b"")))
        self._is_open = self._is_open and self._is_arriving
        return message

    async def send(self, message: Message) -> None:
        """ASGI's `send`. A request that is answered needs no more of its body.

        What still arrives is dropped before the response is complete: the server may close the connection then, and to close
        one with unread bytes resets it, so that the client would not see the response.
        """
        self._is_open = False
        is_last = message["type"] == "http.response.body" and not message.get("more_body")
        if is_last and self._is_arriving:
            await self._send({**message, "more_body": True})
            await self._drop_rest()
            message = {**message, "body": b""}
        await self._send(message)

    async def _next(self) -> Message:
        message = await self._receive()
        self._is_arriving = bool(message.get("more_body"))
        return message

    async def _drop_rest(self) -> None:
        loop, dropped = asyncio.get_running_loop(), 0
        with suppress(TimeoutError):
            while self._is_arriving and dropped <= MOST_DROPPED * self._limits.most_bytes:
                async with asyncio.timeout_at(min(self._ends, loop.time() + SECONDS_OF_SILENCE)):
                    dropped += len((await self._next()).get("body", b""))

    def _give_back(self) -> None:
        self._all_held.give_back(self.tenant, self._held)
        self._held = 0

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._limits.most_bytes:
            raise too_large(self._limits.most_bytes)
        if self._all_held.take(self.tenant, size) is not None:
            raise Problem(
                503, "too_many_bodies", "This server is receiving too many large requests; send this one again.", _CLOSE
            )
        self._held += size


def too_large(most: int) -> Problem:
    """The problem of a body with more than `most` bytes."""
    return Problem(413, "too_large", f"The body has more than {most:,} bytes; send less.", _CLOSE)


async def read_body(request: Request, most: int | None = None) -> bytes:
    """The body of a request, which is not kept for later. `most`: bytes; None: the limit of all requests.

    Raises:
        Problem: it is too large or too slow, or the client has gone.
    """
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if most is not None and len(body) > most:
                raise too_large(most)
    except ClientDisconnect:
        raise Problem(400, "disconnected", "The connection was closed before the body was complete.") from None
    return bytes(body)
