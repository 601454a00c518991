"""The extension `io.modelcontextprotocol/tasks` (2026-07-28): a run is a task, whose id is the run's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import decode_header_value
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

from mulligan.serve.caller import Caller
from mulligan.serve.http_protocol import caller_of, runs_of
from mulligan.serve.mcp_api.person_forms import can_show_forms, forms_for, read_forms, submit_forms, waiting_text
from mulligan.serve.mcp_api.run_outcome import is_ended, outcome_of
from mulligan.serve.problems import Problem
from mulligan.serve.runs import RunInfo, Runs
from mulligan.wire.times import iso

TASKS = "io.modelcontextprotocol/tasks"
POLL_MS = 1_000
"""How often a client should ask."""

Context = ServerRequestContext[Any, Any]


class UpdateTaskParams(types.GetTaskRequestParams):
    """The parameters of `tasks/update`."""

    input_responses: dict[str, Any]


def add_tasks(server: Server[Any], explained: Callable[[Any], Any]) -> None:
    """Offer the extension. `explained` makes the failures of a handler JSON-RPC errors."""
    server.extensions[TASKS] = {}
    server.add_request_handler("tasks/get", types.GetTaskRequestParams, explained(_get))
    server.add_request_handler("tasks/update", UpdateTaskParams, explained(_update))
    server.add_request_handler("tasks/cancel", types.CancelTaskRequestParams, explained(_cancel))


def http_request(context: Context) -> Request:
    """The HTTP request that a message came with."""
    request = context.request
    assert isinstance(request, Request)
    return request


async def runs_and_caller(context: Context) -> tuple[Runs, Caller]:
    """The runs, and who sends the request."""
    request = http_request(context)
    return await runs_of(request), caller_of(request)


def wants_tasks(context: Context) -> bool:
    """Whether the client of a request can follow a task. Each request says so of itself."""
    capabilities = context.session.client_capabilities
    declared = (capabilities.extensions or {}) if capabilities else {}
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and TASKS in declared


def new_task(info: RunInfo) -> dict[str, Any]:
    """The result of a call whose run goes on as a task."""
    return {**_task(info, "working"), "resultType": "task"}


async def _get(context: Context, params: types.GetTaskRequestParams) -> dict[str, Any]:
    """`tasks/get`: the state of a run; its result, or the forms that it waits for."""
    _check(context, params.task_id)
    runs, caller = await runs_and_caller(context)
    info = await _known(params.task_id, runs.read(caller, params.task_id))
    if is_ended(info):
        if info.status == "cancelled":
            return _task(info, "cancelled")
        result = outcome_of(info).model_dump(mode="json", by_alias=True, exclude_none=True)
        return {**_task(info, "completed"), "result": result}
    waiting = await runs.pending(caller, info.id) if info.progress is not None else []
    if waiting and can_show_forms(context.session.client_capabilities):
        forms = forms_for(waiting).items()
        requests = {key: form.model_dump(mode="json", by_alias=True, exclude_none=True) for key, form in forms}
        return {**_task(info, "input_required"), "inputRequests": requests}
    return {**_task(info, "working"), **({"statusMessage": waiting_text(info.id, waiting)} if waiting else {})}


async def _update(context: Context, params: UpdateTaskParams) -> dict[str, Any]:
    """`tasks/update`: the forms that came back. Those that nothing waits for are ignored."""
    _check(context, params.task_id)
    runs, caller = await runs_and_caller(context)
    waiting = await _known(params.task_id, runs.pending(caller, params.task_id))
    await submit_forms(runs, caller, waiting, read_forms(waiting, params.input_responses))
    return {}


async def _cancel(context: Context, params: types.CancelTaskRequestParams) -> dict[str, Any]:
    """`tasks/cancel`. Cancelling a run that has ended is accepted too."""
    _check(context, params.task_id)
    runs, caller = await runs_and_caller(context)
    info = await _known(params.task_id, runs.read(caller, params.task_id))
    if not is_ended(info):
        await runs.cancel(caller, info.id)
    return {}


def _check(context: Context, task_id: str) -> None:
    """The client must have declared the extension, and the header by which requests are routed must name the task."""
    if not wants_tasks(context):
        required: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"{context.method} needs a client that declares the extension {TASKS}.",
            required,
        )
    named = decode_header_value(http_request(context).headers.get("mcp-name"))
    if named != task_id:
        told = f"The header Mcp-Name is {str(named)[:80]!r}; it must be the task's id, {task_id[:80]!r}."
        raise MCPError(types.HEADER_MISMATCH, told)


async def _known(task_id: str, reading: Any) -> Any:
    try:
        return await reading
    except Problem as problem:
        if problem.code in ("run_not_found", "invalid_input"):
            raise MCPError(types.INVALID_PARAMS, f"There is no task {task_id[:200]!r}.") from None
        raise


def _task(info: RunInfo, status: str) -> dict[str, Any]:
    waiting = info.waiting_for or {}
    updated = info.ended or waiting.get("since") or info.started
    task = {
        "taskId": info.id,
        "status": status,
        "createdAt": iso(info.started),
        "lastUpdatedAt": iso(updated),
        "ttlMs": None,  # as long as the namespace keeps closed workflows, which only its operator knows
        "pollIntervalMs": POLL_MS,
    }
    return {**task, **({"statusMessage": str(waiting["detail"])} if waiting.get("detail") else {})}
