"""What the server needs of a protocol, and what a protocol gets from the server for a request."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Request
from pydantic import BaseModel
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
DONE = b"data: [DONE]\n\n"
"""The frame with which protocols end a stream that have no event for it."""
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


STREAM: dict[int | str, Any] = {200: {"content": {"text/event-stream": {}}}}
"""The `responses` of a route that answers with an `EventStream`."""
ENDED: dict[int | str, Any] = {204: {"description": "There is nothing to stream: what was to be watched has ended."}}
"""Those of a route to which a browser's `EventSource` connects again."""
PROBLEM_JSON = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
"""How the OpenAPI document describes the body of a problem."""
_PROBLEMS = {
    400: "The body is not JSON that can be read, or a header is invalid.",
    401: "The request has no token, or one that is not known.",
    403: "The caller, or a page of this origin, may not do this.",
    404: "There is no such run, agent or call, or the caller may not see it.",
    408: "The body did not arrive in time.",
    409: "The run is in a state, or has an id, with which this cannot be done; `code` says which.",
    413: "The body is too large.",
    415: "The body is compressed.",
    421: "The server does not serve the host that the request names.",
    422: "A parameter or a field of the body is invalid, or the key belongs to another request.",
    502: "Temporal refuses the request.",
    503: "Temporal, a worker or this server cannot serve it now; `Retry-After` says when to send it again.",
}
_OF_ALL_ROUTES = (400, 401, 403, 408, 413, 415, 421, 422, 502, 503)


def problems(*statuses: int, body: Mapping[str, Any] = PROBLEM_JSON) -> dict[int | str, Any]:
    """The `responses` of a route for problems with these statuses, beside those that all routes of its protocol have."""
    return {status: {"description": _PROBLEMS[status], "content": body} for status in statuses}


def problem_body(*fields: str) -> dict[str, Any]:
    """How the OpenAPI document describes an object with these texts, the problems of a protocol that has its own form."""
    properties = {field: {"type": "string"} for field in fields}
    return {"application/json": {"schema": {"type": "object", "required": [*fields], "properties": properties}}}


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
    `paths`: those of its paths that do not begin with the prefix. `models`: of bodies that its routes read by themselves.
    `problem`: how the OpenAPI document describes the body of a refusal.
    """

    prefix: str
    router: APIRouter
    refuse: Callable[[Problem], Response]
    public: Sequence[str] = ()
    paths: Sequence[str] = ()
    models: Sequence[type[BaseModel]] = ()
    problem: Mapping[str, Any] = field(default_factory=lambda: PROBLEM_JSON)

    @property
    def problems(self) -> dict[int | str, Any]:
        """The `responses` that all of its routes have: what the server refuses before it calls one."""
        is_public = f"{self.prefix}/" in self.public
        return problems(*(each for each in _OF_ALL_ROUTES if not (is_public and each == 401)), body=self.problem)

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
RunId = Annotated[str, Path(alias="id")]
"""The parameters of a route: `runs: Serving`, `caller: Calling`, and `run_id: RunId` where its path has `{id:path}`."""


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
