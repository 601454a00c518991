"""The route `/mcp`: each request is an exchange of its own with the SDK's server, so that any replica can answer it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, TypeVar

import mcp_types as types
from fastapi import APIRouter, Request, Response
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from mulligan.serve.arriving_body import BODY_BYTES
from mulligan.serve.http_protocol import SEND_SECONDS, Protocol
from mulligan.serve.json_body import check_body
from mulligan.serve.mcp_api.agent_tools import tools_of
from mulligan.serve.mcp_api.run_outcome import failure
from mulligan.serve.mcp_api.run_tasks import add_tasks, http_request, runs_and_caller
from mulligan.serve.mcp_api.tool_calls import Result, call_tool
from mulligan.serve.problems import Problem, problem_of
from mulligan.serve.served_request import ServedRequest

PREFIX = "/mcp"
LIST_TTL_MS = 60_000
"""How long a client may use the list of tools."""
INSTRUCTIONS = (
    "Each tool that takes a prompt is an agent, which works on the task by itself. Its runs are durable: they continue when "
    "the connection is lost, and wait_for_run returns the answer later."
)
_PROBLEM = "mulligan.mcp_problem"
_CORRECTABLE = {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY}

_log = logging.getLogger(__name__)

Context = ServerRequestContext[Any, Any]
Params = TypeVar("Params")


async def _list_tools(context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    runs, caller = await runs_and_caller(context)
    return types.ListToolsResult(tools=tools_of(await runs.agents(caller)))


async def _call_tool(context: Context, params: types.CallToolRequestParams) -> Result:
    try:
        return await call_tool(context, params)
    except Exception as error:
        problem, started = problem_of(error), ServedRequest.of(http_request(context).scope).started
        if started is not None:
            _log.error("POST %s %s: %s", PREFIX, context.method, problem.detail, exc_info=error)
            return failure(
                f"The run {started} was started, but its answer cannot be returned now: {problem.detail} "
                "Call wait_for_run with this run_id to get its answer; do not repeat this call."
            )
        if isinstance(error, MCPError) or problem.status not in _CORRECTABLE:
            raise
        return failure(problem.detail)  # a model can correct it


def _explained(handle: Callable[[Context, Params], Awaitable[Any]]) -> Callable[[Context, Params], Awaitable[Any]]:
    """A handler whose failures are JSON-RPC errors with a sentence."""

    async def explain(context: Context, params: Params) -> Any:
        try:
            return await handle(context, params)
        except (MCPError, ValidationError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets a sentence
            problem = problem_of(error)
            if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
                _log.exception("POST %s %s: %s", PREFIX, context.method, problem.detail)
            http_request(context).scope[_PROBLEM] = problem
            raise _rpc_error(problem) from None

    return explain


def _server() -> Server[Any]:
    server: Server[Any] = Server(
        "mulligan",
        version=version("mulligan"),
        title="Mulligan",
        instructions=INSTRUCTIONS,
        cache_hints={"tools/list": CacheHint(ttl_ms=LIST_TTL_MS, scope="private")},
        # No argument is repeated in a header, so there is nothing to compare before a call.
        get_tool_input_schema=lambda _: None,
        on_list_tools=_explained(_list_tools),
        on_call_tool=_explained(_call_tool),
    )
    add_tasks(server, _explained)
    server.middleware.clear()  # spans of requests: a run has its own trace
    return server


class _Exchange(Response):
    """The response to one request, which the SDK's server writes."""

    def __init__(self, server: Server[Any], body: bytes) -> None:
        super().__init__()
        self._server, self._body = server, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request. The SDK's manager is made for it alone: it keeps nothing, and needs no lifespan."""
        manager = StreamableHTTPSessionManager(self._server, stateless=True, max_request_body_size=BODY_BYTES)
        is_read = False

        async def receive_body() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read, body, self._body = True, self._body, b""  # a call may take long, and needs its body no more
            return {"type": "http.request", "body": body, "more_body": False}

        async def send_in_time(message: Message) -> None:
            if message["type"] == "http.response.start":
                _set_status(message, scope.get(_PROBLEM))
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        try:
            async with manager.run():
                await manager.handle_request(scope, receive_body, send_in_time)
        except* TimeoutError:
            _log.info("A client of %s does not read; it was disconnected.", PREFIX)


def _set_status(message: Message, problem: Problem | None) -> None:
    """A response that is only an error has the status of it, with `Retry-After`."""
    is_json = any(
        name == b"content-type" and value.startswith(b"application/json") for name, value in message["headers"]
    )
    if problem is not None and is_json and problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        message["status"] = problem.status
        extra = [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
        message["headers"] = [*message["headers"], *extra]


def _rpc_error(problem: Problem) -> MCPError:
    is_clients = problem.status < HTTPStatus.INTERNAL_SERVER_ERROR
    code = types.INVALID_PARAMS if is_clients else types.INTERNAL_ERROR
    code = types.PARSE_ERROR if problem.code == "invalid_json" else code
    return MCPError(code, problem.detail, {"code": problem.code, "status": problem.status})


def _refuse(problem: Problem) -> Response:
    """A problem of the HTTP request as a JSON-RPC error without an id."""
    error = _rpc_error(problem).error.model_dump(mode="json", exclude_none=True)
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, problem.status, headers=problem.headers)


_SERVER = _server()
router = APIRouter(tags=["mcp"])


@router.post(PREFIX, include_in_schema=False)
async def exchange(request: Request) -> Response:
    """Answer one JSON-RPC message. There are no sessions, so there is nothing to GET or to DELETE."""
    return _Exchange(_SERVER, await check_body(request))


MCP = Protocol(prefix=PREFIX, router=router, refuse=_refuse)
