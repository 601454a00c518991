"""`/api/runs/{id}/undo`: undo an ended run (`POST`), and what is undone of it (`GET`); the page of the console for both."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Body, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from mulligan.client.origins.run_state import NoWorkerError, ResumeError, RunOpenError
from mulligan.client.undo.undo import GoneOnError, Undone, open_continuation, read_result, read_undo, start_undo
from mulligan.features.feature_parts import FeaturePages
from mulligan.serve.caller import Caller
from mulligan.serve.clean_text import without_folders
from mulligan.serve.console.rendering import page
from mulligan.serve.console.sessions import leave_note
from mulligan.serve.console.signed_in import PREFIX as CONSOLE
from mulligan.serve.console.signed_in import Form, Viewing, redirect
from mulligan.serve.console.waiting_counts import Counted
from mulligan.serve.http_protocol import Calling, Protocol, RunId, Serving, problems, refuse_by_rfc_9457
from mulligan.serve.json_body import JsonRoute
from mulligan.serve.problems import Problem, problem_of_state
from mulligan.serve.runs import Runs
from mulligan.values import ErrorInfo
from mulligan.wire.checked_result import MOST_INT
from mulligan.wire.undo import UndoOptions

PREFIX = "/api/runs"
MOST_WAIT_SECONDS = 60
PAGES = FeaturePages(action="undo")
"""What the console offers on the page of a run that has ended."""

api = APIRouter(prefix=PREFIX, tags=["runs"], route_class=JsonRoute)
pages = APIRouter(prefix=f"{CONSOLE}/runs", include_in_schema=False)


class UndoneCall(BaseModel):
    """A call, and what became of its undo. `run`: the id of the run that has executed it: of a sub-agent, perhaps."""

    run: str
    call_id: str
    """The call's id."""
    name: str
    """The name of the tool."""
    agent: str
    """The name of the agent."""
    step: int
    """The number of the step of its run, from 1."""
    error: ErrorInfo | None
    """Why it is not undone."""


class UndoneRun(BaseModel):
    """What is undone of a run. The calls of each list are in the order of their undo, the last one of the run first."""

    id: str | None
    """The workflow id of the newest undo; null: there is none."""
    status: str
    """`not_started`, `running`, `completed`, or `failed`: then `error` says why."""
    undone: list[UndoneCall]
    failed: list[UndoneCall]
    not_reached: list[UndoneCall]
    no_undo: list[UndoneCall]
    """The calls of tools that have no undo."""
    error: ErrorInfo | None
    """Why the undo has failed as a whole."""
    open_continuation: str | None = None
    """The run that is open and goes on from this one, although it is undone."""


class Undo(BaseModel):
    """How a run is undone."""

    model_config = ConfigDict(extra="forbid")

    from_step: Annotated[int, Field(ge=1, le=MOST_INT)] | None = None
    """Only the calls of this step and of later ones."""
    go_on: Annotated[bool, Field(alias="continue")] = False
    """Whether the others are undone after an undo that has failed."""
    lost: bool = False
    """Whether calls are undone of which nobody knows whether they have done their work (`tool_lost`, `tool_timeout`)."""
    although_continued: bool = False
    """Whether the run is undone although another run has continued its conversation."""

    @property
    def options(self) -> UndoOptions:
        """The options of the undo itself."""
        return UndoOptions(from_step=self.from_step, go_on=self.go_on, lost=self.lost)


@api.post(
    "/{id:path}/undo",
    response_model=UndoneRun,
    responses={202: {"model": UndoneRun, "description": "The undo goes on."}, **problems(403, 404, 409)},
)
async def undo(
    run_id: RunId,
    runs: Serving,
    caller: Calling,
    how: Annotated[Undo | None, Body()] = None,
    wait: Annotated[float, Query(ge=0, le=MOST_WAIT_SECONDS, description="Wait so long for its end.")] = 20,
) -> Response:
    """Undo what an ended run has executed. 200 once the undo has ended; 202 while it goes on: `GET` reads what became of it.

    Sent again, it takes up what has failed and what was not reached, and repeats nothing.
    """
    undone = await _start(runs, caller, run_id, how or Undo(), wait)
    goes_on = await open_continuation(runs.client, run_id)
    return JSONResponse({**_cleaned(undone), "open_continuation": goes_on}, 202 if undone.is_open else 200)


@api.get("/{id:path}/undo", response_model=UndoneRun, responses=problems(404, 409))
async def read(run_id: RunId, runs: Serving, caller: Calling) -> Response:
    """What is undone of an ended run, what can be, and which calls have no undo."""
    return JSONResponse(_cleaned(await _read(runs, caller, run_id)))


@pages.get("/{run_id:path}/undo-it")
async def show(run_id: str, request: Request, runs: Serving, session: Counted) -> Response:
    """The page that lists what an undo would do, and what it has done."""
    listed = _cleaned(await _read(runs, session.caller, run_id))
    return page(request, session, "undo.html", title="Undo a run", run_id=run_id, undone=listed)


@pages.post("/{run_id:path}/undo")
async def send(run_id: str, request: Request, runs: Serving, session: Viewing, form: Form) -> Response:
    """Undo a run, and show what became of it."""
    response = redirect(request, f"{CONSOLE}/runs/{quote(run_id)}/undo-it")
    chosen = {name: bool(form.get(name)) for name in ("continue", "lost", "although_continued")}
    try:
        await _start(runs, session.caller, run_id, Undo(**chosen), wait=10)
    except Problem as problem:
        leave_note(request, response, "problem", problem.detail)
    return response


async def _start(runs: Runs, caller: Caller, run_id: str, how: Undo, wait: float) -> Undone:
    try:
        await _check_may_undo(runs, caller, run_id, how.options)
        handle = await start_undo(runs.client, run_id, how.options, although_continued=how.although_continued)
        try:
            async with asyncio.timeout(wait):
                return await read_result(runs.client, handle)
        except TimeoutError:
            try:
                return await read_undo(runs.client, run_id)
            except NoWorkerError:  # the undo waits for one
                return Undone(handle.id, True, [])
    except ResumeError as error:
        raise _problem(error) from None


async def _check_may_undo(runs: Runs, caller: Caller, run_id: str, options: UndoOptions) -> None:
    """Check that a caller may undo a run: it may start its agent, and has the roles that its calls needed.

    Raises:
        Problem: it may not.
        ResumeError: the calls cannot be read.
    """
    await runs.check_agent(caller, run_id)
    if caller.operator:
        return
    for call in (await read_undo(runs.client, run_id, options)).calls:
        is_left = call.schedule is not None and call.state != "undone"
        if is_left and call.role is not None and call.role not in caller.roles:
            raise Problem(
                403, "role_needed", f"Whoever undoes the call {call.call_id!r} of {call.name!r} needs the role "
                f"{call.role!r}, as whoever decides on such calls does.",
            )  # fmt: skip


async def _read(runs: Runs, caller: Caller, run_id: str) -> Undone:
    await runs.describe(caller, run_id)
    try:
        return await read_undo(runs.client, run_id)
    except ResumeError as error:
        raise _problem(error) from None


def _problem(error: ResumeError) -> Problem:
    match error:
        case RunOpenError():
            return Problem(409, "run_open", str(error))
        case GoneOnError():
            where = {"Location": f"{PREFIX}/{quote(error.workflow_id, safe='')}"}
            return Problem(409, "already_resumed", str(error), where)
    return problem_of_state(error, 409, "not_undoable")


def _cleaned(undone: Undone) -> dict[str, Any]:
    """The list without folders of the server's machine, which texts of exceptions may name."""
    for error in (undone.error, *(call.error for call in undone.calls)):
        if error is not None:
            error.message = without_folders(error.message)
    return undone.to_json()


router = APIRouter()
router.include_router(api)
router.include_router(pages)
PROTOCOL = Protocol(prefix=PREFIX, router=router, refuse=refuse_by_rfc_9457)
