"""The ASGI application: the protocols behind the gate, and the client of Temporal that they share."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from temporalio.client import Client
from temporalio.service import RetryConfig

from mulligan.client.connect import connect
from mulligan.client.settings import settings
from mulligan.ended_runs.query_interceptor import with_ended_runs
from mulligan.features import installed
from mulligan.schema.fault_text import required_form
from mulligan.serve.ag_ui import AG_UI
from mulligan.serve.ai_sdk import AI_SDK
from mulligan.serve.api import API
from mulligan.serve.arriving_body import BodyLimits
from mulligan.serve.caller_rights import check_route
from mulligan.serve.clean_text import hide_secrets_in_logs, logged_path
from mulligan.serve.console.console_pages import CONSOLE
from mulligan.serve.gate import Gate
from mulligan.serve.http_protocol import Protocol, path_of, refuse_by_rfc_9457
from mulligan.serve.mcp_api.mcp_endpoint import MCP
from mulligan.serve.openai_api.openai_protocol import OPENAI
from mulligan.serve.openai_api.side_requests import side_requests
from mulligan.serve.openapi_document import DocumentedApplication
from mulligan.serve.own_sign_in import Authenticate, OwnSignIn
from mulligan.serve.problems import KNOWN_ERRORS, Problem, ProblemDetails, after_start, problem_of
from mulligan.serve.runs import MOST_WATCHERS, Runs
from mulligan.serve.security import Access, parse_tokens
from mulligan.serve.served_request import ServedRequest
from mulligan.serve.shown_json import shown_json

PROTOCOLS: Sequence[Protocol] = (
    # Features first: a run's id, in a path of the API, may be anything.
    *installed("paths").values(),
    API,
    *(OPENAI, AG_UI, AI_SDK, MCP, CONSOLE),
)
"""All protocols: a new one is a file beside api.py, and a name here. Those of features are among their parts."""
RETRY = RetryConfig(max_elapsed_time_millis=3_000)
"""How long a request is tried again while Temporal does not answer; then the client is told so, with Retry-After."""
_log = logging.getLogger(__name__)


def create_app(  # noqa: PLR0913 - an option is a parameter
    *,
    client: Client | None = None,
    tokens: str | None = None,
    hosts: Iterable[str] = (),
    origins: Iterable[str] = (),
    task_queue: str | None = None,
    bodies: BodyLimits | None = None,
    most_watchers: int = MOST_WATCHERS,
    strict: bool = False,
    stop_on_disconnect: bool = False,
    authenticate: Authenticate | None = None,
) -> FastAPI:
    """The application. See `mulligan.serve.app` for the arguments."""
    configured = settings()
    text = configured.serve_tokens.get_secret_value() if tokens is None else tokens
    sign_in = None if authenticate is None else OwnSignIn(authenticate)
    access = Access(parse_tokens(text), hosts, origins, sign_in)
    app = DocumentedApplication(
        models=[ProblemDetails, *(model for protocol in PROTOCOLS for model in protocol.models)],
        security="sign-in" if sign_in else "tokens" if access.has_tokens else "anybody",
        openapi_url="/api/openapi.json",
        docs_url=None,  # their pages load scripts from another host
        redoc_url=None,
        lifespan=_lifespan,
    )
    make_runs = partial(
        Runs,
        task_queue=task_queue or configured.task_queue,
        most_watchers=most_watchers,
        strict=strict,
        stops_on_disconnect=stop_on_disconnect,
    )
    connection = _Connection(client, make_runs)
    app.state.connection, app.state.access, app.state.kept = connection, access, {}
    app.state.side_requests = side_requests(configured.side_requests)
    hide_secrets_in_logs()
    for protocol in PROTOCOLS:
        app.include_router(protocol.router, responses=protocol.problems, dependencies=[Depends(check_route)])
    app.add_middleware(
        Gate,
        access=access,
        refuse=_refuse,
        public=[path for protocol in PROTOCOLS for path in protocol.public],
        bodies=bodies or BodyLimits(),
    )
    _add_error_handlers(app)
    return app


class _Connection:
    """The client of Temporal, connected at the first request: a mounted application has no lifespan of its own."""

    def __init__(self, client: Client | None, make_runs: Callable[[Client], Runs]) -> None:
        self._client, self._make_runs = client, make_runs
        self._runs: Runs | None = None

    async def runs(self) -> Runs:
        if self._runs is None:
            client = with_ended_runs(self._client or await connect(lazy=True, retry_config=RETRY))
            self._runs = self._runs or self._make_runs(client)
        return self._runs

    async def close(self) -> None:
        if self._runs is not None:
            await self._runs.close()


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await app.state.connection.close()


def _refuse(path: str, problem: Problem) -> Response:
    """A problem in the form of the protocol whose path it is."""
    for protocol in PROTOCOLS:
        if protocol.has(path):
            return protocol.refuse(problem)
    return refuse_by_rfc_9457(problem)


def _add_error_handlers(app: FastAPI) -> None:
    """Whatever goes wrong with a request becomes a problem: never a traceback, and never FastAPI's own form."""

    def respond(request: Request, problem: Problem) -> Response:
        return _refuse(path_of(request.scope), problem)

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return respond(request, _problem_of_fault(error.errors()[0]))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        # FastAPI makes a 400 of whatever is raised while a body is read.
        cause = error.__cause__
        return respond(request, cause if isinstance(cause, Problem) else _problem_of_http(request, error))

    async def on_problem(request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            is_known = isinstance(error, Problem) or problem.status != HTTPStatus.INTERNAL_SERVER_ERROR
            _log.error(
                "%s %s: %s",
                request.method,
                logged_path(path_of(request.scope)),
                problem.detail,
                exc_info=None if is_known else error,
            )
        return respond(request, after_start(problem, ServedRequest.of(request.scope).started))

    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
    # Not Exception: Starlette would raise it again after the response, for the server to log with its traceback.
    for kind in KNOWN_ERRORS:
        app.add_exception_handler(kind, on_problem)
    app.add_exception_handler(Exception, on_problem)


def _problem_of_fault(fault: Any) -> Problem:
    """The first thing that is wrong with the parameters or the body of a request."""
    place, *path = fault["loc"]
    if fault["type"] == "json_invalid":
        return Problem(400, "invalid_json", f"The body is not JSON: {fault['ctx']['error']}.")
    name = ".".join(str(part) for part in path) or f"the {place}"
    subject = f'"{name[:200]}"' if path else "The body"
    match fault["type"]:
        case "missing":
            return Problem(422, "invalid_input", f"{subject} is missing.")
        case "extra_forbidden":
            return Problem(422, "invalid_input", f"{subject} is not a known field; see /api/openapi.json.")
    return Problem(422, "invalid_input", f"{subject} is {shown_json(fault['input'])}, but {required_form(fault)}.")


def _problem_of_http(request: Request, error: HTTPException) -> Problem:
    headers = dict(error.headers or {})
    path = path_of(request.scope)[:200]
    match error.status_code:
        case 404:
            return Problem(404, "path_not_found", f"There is nothing at {path}; see /api/openapi.json.", headers)
        case 405:
            allowed = headers.get("Allow", headers.get("allow", "another method"))
            return Problem(405, "wrong_method", f"{path} does not take {request.method}; use {allowed}.", headers)
        case 400:
            return Problem(400, "invalid_json", "The body cannot be read: it is not JSON, or nested too deep.", headers)
    return Problem(error.status_code, "refused", str(error.detail), headers)
