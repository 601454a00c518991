"""What the server needs of a protocol, and what a protocol gets from the server for a request."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request
from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from mulligan.serve.caller import Caller
from mulligan.serve.clean_text import logged_path
from mulligan.serve.problems import Problem
from mulligan.serve.runs import Runs

SEND_SECONDS = 30.0
"""How long a client may take to read what a stream has written, before it is cut off. What is written is little: see
docs/serving.md."""


SECONDS_BETWEEN_PINGS = 15
T = TypeVar("T")
_log = logging.getLogger(__name__)


class EventStream(EventSourceResponse):
    """Server-sent events. A client that does not read them is cut off."""

    def __init__(
        self,
        frames: AsyncIterator[bytes] | Iterator[bytes],
        headers: Mapping[str, str] | None = None,
        on_disconnect: Callable[[], None] | None = None,
    ) -> None:
        """`on_disconnect`: called once if the client disconnects before the last frame."""
        self._on_disconnect, self._is_whole = on_disconnect, False
        super().__init__(
            self._counted(frames) if on_disconnect else frames,
            headers=headers,
            sep="\n",
            ping=SECONDS_BETWEEN_PINGS,
            send_timeout=SEND_SECONDS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. The server closes the connection of a response that does not end."""

        async def watched() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and self._on_disconnect and not self._is_whole:
                self._on_disconnect()
                self._on_disconnect = None
            return message

        try:
            await super().__call__(scope, watched, send)
        except SendTimeoutError:
            _log.info(
                "A client of %s did not read for %g s, and was cut off.", logged_path(path_of(scope)), SEND_SECONDS
            )

    async def _counted(self, frames: AsyncIterator[bytes] | Iterator[bytes]) -> AsyncIterator[bytes]:
        assert isinstance(frames, AsyncIterator)
        async for each in frames:
            yield each
        self._is_whole = True


STREAM: dict[int | str, Any] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
"""The `responses` of a route that answers with an `EventStream`."""


def frame(data: Mapping[str, Any] | bytes, event: str = "", token: str | None = None) -> bytes:
    """A server-sent event. JSON has no line breaks. `token`: its id."""
    head = (f"id: {token}\n" if token else "") + (f"event: {event}\n" if event else "")
    written = data if isinstance(data, bytes) else json.dumps(data, ensure_ascii=False).encode()
    return b"%sdata: %s\n\n" % (head.encode(), written)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A protocol, which is a file of its own.

    `prefix`: its paths begin with it. `router`: its routes, with whole paths. `refuse`: a problem as a response in the
    protocol's own form for errors. `public`: paths that need no token; a slash at the end means all below it.
    `paths`: those of its paths that do not begin with the prefix.
    """

    prefix: str
    router: APIRouter
    refuse: Callable[[Problem], Response]
    public: Sequence[str] = ()
    paths: Sequence[str] = ()

    def has(self, path: str) -> bool:
        """Whether a path is one of the protocol."""
        return path == self.prefix or path.startswith(f"{self.prefix}/") or path in self.paths


async def runs_of(request: Request) -> Runs:
    """The runs of the application that serves a request."""
    runs: Runs = await request.app.state.connection.runs()
    return runs


def caller_of(request: Request) -> Caller:
    """Who sends the request. Its token was checked before any route is called."""
    caller: Caller = request.scope["mulligan.caller"]
    return caller


Serving = Annotated[Runs, Depends(runs_of)]
Calling = Annotated[Caller, Depends(caller_of)]
"""The parameters of a route: `runs: Serving` and `caller: Calling`."""


def kept(make: Callable[[], T]) -> Callable[[Request], T]:
    """A dependency: what `make` returns, most often an object of a class, once for each application."""

    def of_application(request: Request) -> T:
        known: dict[Any, Any] = request.app.state.kept
        if make not in known:
            known[make] = make()
        instance: T = known[make]
        return instance

    return of_application


def path_of(scope: Scope) -> str:
    """The path of a request in this application, which may be mounted below another one."""
    path, root = scope["path"], scope.get("root_path", "")
    return str(path.removeprefix(root) if root and path.startswith(f"{root}/") else path)


def refuse_by_rfc_9457(problem: Problem) -> Response:
    """A problem as `application/problem+json`."""
    return JSONResponse(
        problem.to_json(), problem.status, headers=problem.headers, media_type="application/problem+json"
    )
