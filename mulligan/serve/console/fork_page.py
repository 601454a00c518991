"""The form at each step of a run with which people fork it, and what it sends."""

from __future__ import annotations

import json
import secrets
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from mulligan.serve.caller import Caller
from mulligan.serve.console.console_forms import refusal_of
from mulligan.serve.console.rendering import page
from mulligan.serve.console.sessions import Session
from mulligan.serve.console.signed_in import PREFIX, Form, Viewing, redirect
from mulligan.serve.console.waiting_counts import Counted
from mulligan.serve.http_protocol import Serving
from mulligan.serve.problems import KNOWN_ERRORS, Problem
from mulligan.serve.runs import Runs
from mulligan.wire.checked_result import MOST_INT

STEPS_WITH_CALLS = 20
"""The steps before the fork's, newest last, whose results the form can change."""
_TOOLS: dict[str, dict[str, str]] = {
    "diverge": {"tools": "recorded", "unrecorded": "diverge"},
    "error": {"tools": "recorded", "unrecorded": "error"},
    "live": {"tools": "live"},
}

fork_pages = APIRouter(prefix=PREFIX, include_in_schema=False)


@fork_pages.get("/runs/{run_id:path}/fork")
async def show_fork(
    run_id: str,
    request: Request,
    runs: Serving,
    session: Counted,
    at: Annotated[int, Query(ge=1, le=MOST_INT)] = 1,
) -> Response:
    """The form that forks a run before a step."""
    await runs.describe(session.caller, run_id)
    form = {"at": str(at), "id": f"{run_id[:900]}-fork-{secrets.token_hex(3)}"}
    return await _form_page(request, runs, session, run_id, form)


@fork_pages.post("/runs/{run_id:path}/fork")
async def send_fork(run_id: str, request: Request, runs: Serving, session: Viewing, form: Form) -> Response:
    """Fork a run, and show the fork. Sent twice, it is one run: the form has its id."""
    try:
        forked = await runs.fork(session.caller, run_id, _options(form))
    except KNOWN_ERRORS as error:
        return await _form_page(request, runs, session, run_id, form, refusal_of(error))
    return redirect(request, f"{PREFIX}/runs/{quote(forked.handle.id)}")


async def _form_page(
    request: Request, runs: Runs, session: Session, run_id: str, form: dict[str, str], problem: Problem | None = None
) -> Response:
    form = {**form, "at": str(at := _step(form))}
    calls = await _calls_before(runs, session.caller, run_id, at)
    values: dict[str, Any] = {"title": f"Fork from step {at}", "run_id": run_id, "calls": calls, "form": form}
    refused, status = (problem.detail, problem.status) if problem else ("", 200)
    return page(request, session, "fork.html", status, refused=refused, **values)


def _step(form: dict[str, str]) -> int:
    return int(form["at"]) if form.get("at", "").isdecimal() and len(form["at"]) < len(str(MOST_INT)) else 1


async def _calls_before(runs: Runs, caller: Caller, run_id: str, at: int) -> list[dict[str, Any]]:
    """The calls of the steps before a step, each with the number of its `step`."""
    since = max(0, at - 1 - STEPS_WITH_CALLS)
    steps = (await runs.steps(caller, run_id, since, at - 1 - since))["steps"] if at > 1 else []
    return [{"step": step["step"], **call} for step in steps for call in step["tool_calls"] if call["result"]]


def _options(form: dict[str, str]) -> dict[str, Any]:
    """The options of a fork. A field that is left empty changes nothing.

    Raises:
        Problem: the other result is not JSON, or belongs to no call.
    """
    edits: dict[str, Any] = {
        name: form[name] for name in ("prompt", "message", "instructions", "model") if form.get(name, "").strip()
    }
    if form.get("result", "").strip():
        if not form.get("call"):
            raise Problem(422, "invalid_input", "Choose the call whose result is another one.")
        try:
            edits["results"] = {form["call"]: json.loads(form["result"])}
        except (ValueError, RecursionError):
            sentence = 'The other result is not JSON; a text has quotes: "done".'
            raise Problem(422, "invalid_input", sentence) from None
    how = _TOOLS.get(form.get("tools") or "diverge")
    if how is None:
        raise Problem(422, "invalid_input", f'"tools" is {form["tools"][:80]!r}; choose one of the list.')
    return {"at": _step(form), "edits": edits, **how, **({"id": form["id"]} if form.get("id") else {})}
