"""The connections of the server: how many there may be, and how long a client may take to send a request."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0
"""From the beginning of a connection, or the end of a response, until the head of the next request is complete."""
BODY_SECONDS = 75.0
"""From there until its body is complete: a little more than `BodyLimits`, which makes a response of it."""
KEEP_ALIVE_SECONDS = 15
"""From the end of a response until an idle connection is closed. OpenAI's SDK and others reuse theirs for 5 s: a server that
closes them at the same moment breaks requests."""
HEAD_BYTES = 32_000
MOST_DESCRIPTORS = 16_384
"""Enough for all watchers (runs.py) twice."""


class Connections:
    """The connections of one server. If there are too many, the longest silent connection is closed."""

    def __init__(self, most: int, *, head_seconds: float = HEAD_SECONDS, body_seconds: float = BODY_SECONDS) -> None:
        self._most, self.head_seconds, self.body_seconds = most, head_seconds, body_seconds
        self._incomplete: dict[_Connection, None] = {}
        """Those on which a complete request is waited for, the longest waiting first."""

    def config(self, application: ASGIApp, **options: Any) -> uvicorn.Config:
        """The configuration of a server with these connections. `options`: more of uvicorn's."""

        def new_connection(**arguments: Any) -> _Connection:
            return _Connection(self, **arguments)

        return uvicorn.Config(
            application,
            http=new_connection,  # type: ignore[arg-type]  # called as a class is
            ws="none",
            log_level="warning",
            access_log=False,  # paths contain ids of runs, and queries tokens of events
            server_header=False,
            h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            **options,
        )

    def make_room(self, count: int, newest: _Connection) -> None:
        """Close a connection if there are too many: the newest one, where all others are being served."""
        if count > self._most:
            oldest = next(iter(self._incomplete), newest)
            self.forget(oldest)
            oldest.transport.abort()

    def wait_for(self, connection: _Connection) -> None:
        """Count a connection among those that keep the server waiting, as the newest of them."""
        self.forget(connection)
        self._incomplete[connection] = None

    def forget(self, connection: _Connection) -> None:
        """A connection is served, or has ended."""
        self._incomplete.pop(connection, None)


class _Connection(H11Protocol):
    """A connection. uvicorn closes it if it is idle after a response; this class, if a request is never complete."""

    def __init__(self, all_connections: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._all = all_connections
        self._state: tuple[Any, Any] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._all.make_room(len(self.connections), self)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Set the time limit of what the client has to send next. Bytes that do not complete it do not extend the time."""
        state = (self.conn.their_state, self.cycle)
        if state == self._state:
            return
        self._unwatch()
        self._state = state
        seconds = {h11.IDLE: self._all.head_seconds, h11.SEND_BODY: self._all.body_seconds}.get(self.conn.their_state)
        if seconds is not None and not self.transport.is_closing():
            self._all.wait_for(self)
            self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _unwatch(self) -> None:
        self._all.forget(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def raise_descriptor_limit() -> int:
    """Raise the soft limit of file descriptors as far as it is useful and allowed, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = MOST_DESCRIPTORS
    if soft == resource.RLIM_INFINITY:
        return MOST_DESCRIPTORS
    if soft < min(hard, MOST_DESCRIPTORS):
        soft = min(hard, MOST_DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return min(soft, MOST_DESCRIPTORS)
