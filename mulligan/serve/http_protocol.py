"""What the server needs of a protocol, and what a protocol gets from the server for a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from mulligan.serve.problems import Problem
from mulligan.serve.runs import Runs
from mulligan.serve.security import Caller

__all__ = ["SEND_SECONDS", "Protocol", "caller_of", "path_of", "refuse_by_rfc_9457", "runs_of"]

SEND_SECONDS = 30.0
"""How long a client may take to read what a stream has written, before it is cut off. What is written is little: see
docs/serving.md."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A protocol, which is a file of its own.

    `prefix`: its paths begin with it. `router`: its routes, with whole paths. `refuse`: a problem as a response in the
    protocol's own form for errors. `public`: paths that need no token.
    """

    prefix: str
    router: APIRouter
    refuse: Callable[[Problem], Response]
    public: Sequence[str] = ()


async def runs_of(request: Request) -> Runs:
    """The runs, as a dependency: `runs: Annotated[Runs, Depends(runs_of)]`."""
    runs: Runs = await request.app.state.connection.runs()
    return runs


def caller_of(request: Request) -> Caller:
    """Who sends the request. Its token was checked before any route is called."""
    caller: Caller = request.scope["mulligan.caller"]
    return caller


def path_of(scope: Scope) -> str:
    """The path of a request in this application, which may be mounted below another one."""
    path, root = scope["path"], scope.get("root_path", "")
    return str(path.removeprefix(root) if root and path.startswith(f"{root}/") else path)


def refuse_by_rfc_9457(problem: Problem) -> Response:
    """A problem as `application/problem+json`."""
    return JSONResponse(
        problem.to_json(), problem.status, headers=problem.headers, media_type="application/problem+json"
    )
