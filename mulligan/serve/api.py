"""Our own protocol, `/api`: runs, their events, and what people do with them. Errors are RFC 9457."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Body, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from mulligan.client.find_runs import RunQuery
from mulligan.client.origins.fork_run import Fork
from mulligan.client.watch_run import WatchedEvent
from mulligan.context_view.model_context import ModelContext
from mulligan.run_input import Prompt, RunInput
from mulligan.serve.api_answers import (
    Accepted,
    EventPage,
    MessagePage,
    PendingCall,
    ReadRun,
    RunList,
    ServedAgent,
    StartedFork,
    StartedRun,
    StepPage,
)
from mulligan.serve.caller import Caller
from mulligan.serve.caller_rights import check_fields
from mulligan.serve.client_metadata import run_metadata
from mulligan.serve.http_protocol import (
    ENDED,
    STREAM,
    Calling,
    EventStream,
    Protocol,
    RunId,
    Serving,
    frame,
    problems,
    refuse_by_rfc_9457,
)
from mulligan.serve.idempotency import KEYED, KEYED_PREFIX, StartRequest, read_key, read_update_id
from mulligan.serve.json_body import JsonRoute, check_count, json_object, parse_body
from mulligan.serve.problems import Problem, problem_of
from mulligan.serve.runs import MOST_ITEMS
from mulligan.serve.shown_json import shown_json
from mulligan.wire.checked_result import MOST_INT
from mulligan.wire.updates import Answer, Decide, SendMessage, Stop

PREFIX = "/api"
MOST_WAIT_SECONDS = 60
_LOCATION = {"Location": {"description": "The path of the run.", "schema": {"type": "string"}}}

Since = Annotated[int, Query(ge=0, description="The number of the first entry.")]
Limit = Annotated[int, Query(ge=1, le=MOST_ITEMS, description="The maximum number of entries.")]


router = APIRouter(prefix=PREFIX, tags=["runs"], route_class=JsonRoute)


class NewRun(RunInput):
    """The input of a run, a prompt or messages, and the id that it gets: the same request again is the same run."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": ["prompt"]}, {"required": ["messages"]}],
            "examples": [{"agent": "support", "prompt": "Where is order 7?"}],
        }
    )

    id: str | None = None


class Resume(BaseModel):
    """How an ended run continues. `id`: the new run's."""

    model_config = {"extra": "forbid"}

    prompt: Prompt | None = None
    id: str | None = None
    max_steps: Annotated[int | None, Field(ge=1)] = None
    model: str | None = None
    metadata: dict[str, str] | None = None
    """Of the new run; null: a trusted caller's has that of the earlier one."""


class NewFork(Fork):
    """How a run is forked. `id`: the new run's."""

    id: str | None = None


def _started_responses(model: type[StartedRun]) -> dict[int | str, Any]:
    """The `responses` of routes that start a run, which is described by `model`."""
    return {
        200: {"model": model, "description": "An equal request has started the run before.", "headers": _LOCATION},
        201: {"description": "The run was started.", "headers": _LOCATION},
        **problems(404, 409),
    }


STARTED = _started_responses(StartedRun)
OF_RUN = problems(404, 409)
"""The `responses` of routes that start a run, and of those that act on one."""


@router.post(
    "/runs",
    status_code=201,
    response_model=StartedRun,
    responses=STARTED,
    openapi_extra={
        **KEYED,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/NewRun"}}},
        },
    },
)
async def start(request: Request, runs: Serving, caller: Calling) -> Response:
    """Start a run. 201 for a new one; 200 if an equal request with the same id, or `Idempotency-Key`, has started it."""
    run_id, given, start_request = await parse_body(request, partial(_read_start, request, caller))
    started = await runs.start(caller, given, run_id, request=start_request)
    return _started(started.id, is_new=started.is_new)


def _read_start(request: Request, caller: Caller, given: Any) -> tuple[str | None, bytes, StartRequest | None]:
    """The id that a new run is to have, its input as JSON, and the request if it may be repeated."""
    body = json_object(given)
    check_fields(caller, "NewRun", body)
    run_id = body.pop("id", None)
    if run_id is not None and not isinstance(run_id, str):
        raise Problem(422, "invalid_input", f'"id" is {shown_json(run_id)}; it must be a text.')
    check_count("messages", body.get("messages"))
    start_request = StartRequest.read(request, caller, KEYED_PREFIX, body)
    return run_id, json.dumps(body).encode(), start_request if start_request.is_repeatable else None


class RunFilter(BaseModel):
    """Which runs a list has."""

    agent: str | None = None
    status: str | None = None
    tenant: str | None = None
    since: Annotated[datetime | None, Field(description="Only runs that started at that time or later.")] = None
    until: Annotated[datetime | None, Field(description="Only runs that started before that time.")] = None
    sub_agents: Annotated[bool, Field(description="Also the runs of sub-agents.")] = False
    id_prefix: Annotated[str | None, Field(max_length=500, description="Only runs whose id begins so.")] = None
    forked_from: Annotated[str | None, Field(max_length=1_000, description="Only forks of the run with this id.")] = (
        None
    )
    limit: Annotated[int, Field(ge=1, le=MOST_ITEMS, description="The maximum number of entries.")] = 50
    cursor: Annotated[str | None, Field(description="The `next` of the page before.")] = None


@router.get("/runs", response_model=RunList)
async def list_runs(runs: Serving, caller: Calling, given: Annotated[RunFilter, Query()]) -> Response:
    """List runs: the open ones, then the others, the one that ended last first.

    A page may have fewer than `limit` and still have a next one.
    """
    query = RunQuery(**given.model_dump(exclude={"limit", "cursor"}))
    page = await runs.find(caller, query, limit=given.limit, cursor=given.cursor)
    return JSONResponse({"runs": page.runs, "next": page.next})


@router.get("/runs/{id:path}/steps", response_model=StepPage, responses=OF_RUN)
async def steps(run_id: RunId, runs: Serving, caller: Calling, since: Since = 0, limit: Limit = 100) -> Response:
    """A page of the run's steps: {`steps`, `next`, `total`}."""
    return JSONResponse(await runs.steps(caller, run_id, since, limit))


@router.get("/runs/{id:path}/messages", response_model=MessagePage, responses=OF_RUN)
async def messages(run_id: RunId, runs: Serving, caller: Calling, since: Since = 0, limit: Limit = 100) -> Response:
    """A page of the conversation: {`messages`, `next`, `total`}."""
    return JSONResponse(await runs.messages(caller, run_id, since, limit))


@router.get("/runs/{id:path}/context", response_model=ModelContext, responses=OF_RUN)
async def context(
    run_id: RunId,
    runs: Serving,
    caller: Calling,
    step: Annotated[int, Query(ge=1, le=MOST_INT, description="The number of the step.")],
    conversation: Annotated[
        str | None, Query(max_length=1_000, description="The number or the name of the agent; the first if left out.")
    ] = None,
) -> Response:
    """What the model was sent in a step. For operators."""
    read = await runs.context(caller, run_id, step, conversation)
    return JSONResponse(read.model_dump(mode="json"))


@router.get("/runs/{id:path}/pending", response_model=list[PendingCall], responses=OF_RUN)
async def pending(run_id: RunId, runs: Serving, caller: Calling) -> Response:
    """The calls that wait for a person."""
    return JSONResponse(await runs.pending(caller, run_id))


@router.get("/runs/{id:path}/events", response_model=EventPage, responses={**STREAM, **ENDED, **OF_RUN})
async def events(
    run_id: RunId,
    request: Request,
    runs: Serving,
    caller: Calling,
    since: Annotated[str, Query(description="The token of an event, to continue after it.")] = "",
    limit: Limit = 100,
    last_event_id: Annotated[str | None, Header(description="The same, as browsers send it.")] = None,
) -> Response:
    """The run's events: a JSON page of those that are stored, or with `Accept: text/event-stream` all as they come."""
    since = last_event_id or since
    if "text/event-stream" not in request.headers.get("accept", ""):
        return JSONResponse(await runs.events(caller, run_id, since, limit))
    watched = await runs.watch(caller, run_id, since)
    if watched is None:
        return Response(status_code=204)  # a browser's EventSource connects again after every other end
    return EventStream(event_frames(watched))


@router.post("/runs/{id:path}/messages", responses=OF_RUN, openapi_extra=KEYED)
async def send_message(
    run_id: RunId, request: Request, message: SendMessage, runs: Serving, caller: Calling
) -> Accepted:
    """Send a message to the agent, which reads it before its next step."""
    update_id = read_update_id(request, caller, message.model_dump(mode="json"))
    return Accepted(**await runs.send_message(caller, run_id, message, update_id))


@router.post("/runs/{id:path}/decisions", responses=OF_RUN, openapi_extra=KEYED)
async def decide(run_id: RunId, request: Request, decision: Decide, runs: Serving, caller: Calling) -> Accepted:
    """Approve or deny a call. `by` is the name of the token."""
    update_id = read_update_id(request, caller, decision.model_dump(mode="json"))
    return Accepted(**await runs.decide(caller, run_id, decision, update_id))


@router.post("/runs/{id:path}/answers", responses=OF_RUN, openapi_extra=KEYED)
async def answer(run_id: RunId, request: Request, answered: Answer, runs: Serving, caller: Calling) -> Accepted:
    """Answer a question of the agent. `by` is the name of the token."""
    update_id = read_update_id(request, caller, answered.model_dump(mode="json"))
    return Accepted(**await runs.answer(caller, run_id, answered, update_id))


@router.post("/runs/{id:path}/stop", responses=OF_RUN, openapi_extra=KEYED)
async def stop(
    run_id: RunId, request: Request, runs: Serving, caller: Calling, stopping: Annotated[Stop | None, Body()] = None
) -> Accepted:
    """Let the running calls finish, then end the run."""
    update_id = read_update_id(request, caller, stopping.model_dump() if stopping else {})
    return Accepted(**await runs.stop(caller, run_id, stopping or Stop(), update_id))


@router.post("/runs/{id:path}/cancel", responses=OF_RUN)
async def cancel(run_id: RunId, runs: Serving, caller: Calling) -> Accepted:
    """Cancel the run: its calls are cancelled at once."""
    return Accepted(**await runs.cancel(caller, run_id))


@router.post(
    "/runs/{id:path}/resume",
    status_code=201,
    response_model=StartedRun,
    responses=STARTED,
    openapi_extra=KEYED,
)
async def resume(
    run_id: RunId, request: Request, runs: Serving, caller: Calling, how: Annotated[Resume | None, Body()] = None
) -> Response:
    """Continue an ended run in a new one, with its conversation. The same request again is the same run."""
    options = how.model_dump(exclude_none=True) if how else {}
    check_fields(caller, "Resume", options)
    options |= run_metadata(caller, options.get("metadata"))
    key = read_key(request, caller, KEYED_PREFIX)
    started = await runs.resume(caller, run_id, options, key=key)
    return _started(started.id, is_new=started.is_new)


@router.post(
    "/runs/{id:path}/fork",
    status_code=201,
    response_model=StartedFork,
    responses=_started_responses(StartedFork),
    openapi_extra=KEYED,
)
async def fork(
    run_id: RunId, request: Request, runs: Serving, caller: Calling, how: Annotated[NewFork | None, Body()] = None
) -> Response:
    """Start a run with the messages that a run had before a step. The same request with an `id` again is the same run."""
    options = how.model_dump(exclude_unset=True) if how else {}
    key = read_key(request, caller, KEYED_PREFIX)
    started = await runs.fork(caller, run_id, options, key=key)
    handle = started.handle
    first_run_id = handle.first_execution_run_id or (await handle.describe()).run_id
    return _started(handle.id, is_new=started.is_new, run_id=first_run_id)


# Last, as an id may contain slashes: a sub-agent's is `my-run/call_1`.
@router.get("/runs/{id:path}", response_model=ReadRun, responses=problems(404))
async def read(
    run_id: RunId,
    runs: Serving,
    caller: Calling,
    wait: Annotated[float, Query(ge=0, le=MOST_WAIT_SECONDS, description="Wait so long for its end.")] = 0,
) -> Response:
    """A run: its status, progress, and result."""
    if wait:
        runs.take_place(caller)
    info = await runs.read(caller, run_id, wait=wait)
    return JSONResponse(info.model_dump(mode="json"))


@router.get("/agents", response_model=list[ServedAgent])
async def list_agents(runs: Serving, caller: Calling) -> Response:
    """The agents that the workers serve, and this token may use, with their tools and schemas."""
    return JSONResponse(await runs.agents(caller))


async def event_frames(watched: AsyncIterator[WatchedEvent]) -> AsyncIterator[bytes]:
    """The stream of events; if it cannot go on, its last event is the problem."""
    async with aclosing(watched) as events:  # type: ignore[type-var]
        try:
            async for each in events:
                yield frame(each.json, each.event.type, each.token)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told that the stream ends
            yield frame(problem_of(error).to_json(), "error")


def _started(started_id: str, *, is_new: bool, **more: Any) -> Response:
    headers = {"Location": f"{PREFIX}/runs/{quote(started_id, safe='')}"}
    return JSONResponse({"id": started_id, **more}, 201 if is_new else 200, headers=headers)


API = Protocol(
    prefix=PREFIX, router=router, refuse=refuse_by_rfc_9457, public=[f"{PREFIX}/openapi.json"], models=[NewRun]
)
