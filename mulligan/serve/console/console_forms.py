"""What people send from the console: each form calls the function of `Runs` that the API calls."""

from __future__ import annotations

import json
import secrets
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from mulligan.client.send_update import RunEndedError
from mulligan.errors import UpdateRefusedError
from mulligan.serve.caller import Caller
from mulligan.serve.console.rendering import page
from mulligan.serve.console.sessions import leave_note
from mulligan.serve.console.signed_in import PREFIX, Form, Viewing, redirect
from mulligan.serve.console.waiting_counts import Counts
from mulligan.serve.console.waiting_page import find_waiting, send_decision
from mulligan.serve.http_protocol import Serving
from mulligan.serve.idempotency import StartRequest
from mulligan.serve.problems import KNOWN_ERRORS, Problem, problem_of
from mulligan.serve.runs import Runs
from mulligan.wire.parse_update import parse_update
from mulligan.wire.updates import SendMessage, Stop

_LIMITS = {"max_steps": int, "max_total_tokens": int, "max_cost": float, "priority": int}
_SENTENCES = {
    "stop": "The run was asked to stop; the calls that are running finish first.",
    "cancel": "The run was cancelled.",
    "messages": "The message was sent. The agent reads it before its next step.",
}

_DECIDED = {"approve": "approved", "deny": "denied", "answer": "answered", "timeout": "ended by its time limit"}
LOOKED_AT = 50
"""The newest steps of a run, in which a call that has just been decided is looked for."""

forms = APIRouter(prefix=PREFIX, include_in_schema=False)


@forms.post("/start")
async def start(request: Request, runs: Serving, session: Viewing, form: Form) -> Response:
    """Start a run, and show it."""
    try:
        run_input: dict[str, Any] = {"agent": form.get("agent", ""), "prompt": form.get("prompt", "")}
        run_input |= {name: form[name] for name in ("model", "tenant") if form.get(name)}
        run_input |= _numbers(form)
        # Sent twice, as by a double click, it is one run.
        same = StartRequest.of_form(session.caller, form.get("form_id") or secrets.token_hex(16), run_input)
        given = json.dumps(run_input).encode()
        started = await runs.start(session.caller, given, form.get("id") or None, request=same)
    except KNOWN_ERRORS as error:
        problem = refusal_of(error)
        agents = await runs.agents(session.caller)
        values: dict[str, Any] = {"title": "Start a run", "agents": agents, "form": form, "refused": problem.detail}
        return page(request, session, "start.html", problem.status, **values)
    return redirect(request, f"{PREFIX}/runs/{quote(started.id)}")


@forms.post("/decide")
async def decide(request: Request, runs: Serving, session: Viewing, form: Form, counts: Counts) -> Response:
    """Approve, deny or answer a call; show the changes first if the call was edited."""
    call = await find_waiting(runs, session.caller, form)
    back = {"run": form["run"]} if form.get("only") and form.get("run") else {}
    if call is None:
        return to_decide(request, back, problem=await _why_not_waiting(runs, session.caller, form))
    try:
        try:
            done = await send_decision(runs, session.caller, call, form)
        finally:
            counts.forget()
    except KNOWN_ERRORS as error:
        problem = refusal_of(error)
        call.refused = problem.detail
        if isinstance(error, UpdateRefusedError) and error.ended_by:
            return to_decide(request, back, problem=problem.detail)
        return page(request, session, "decide_one.html", problem.status, title="Decide", call=call, only=bool(back))
    if not done:
        return page(request, session, "decide_one.html", title="Decide", call=call, only=bool(back))
    return to_decide(request, back, done=done)


@forms.post("/runs/{run_id:path}/resume")
async def resume(run_id: str, request: Request, runs: Serving, session: Viewing, form: Form) -> Response:
    """Continue an ended run in a new one, and show that."""
    try:
        options: dict[str, Any] = {name: form[name] for name in ("prompt", "model") if form.get(name)}
        options |= {name: each for name, each in _numbers(form).items() if name == "max_steps"}
        started = await runs.resume(session.caller, run_id, options)
    except KNOWN_ERRORS as error:
        return _to_run(request, run_id, problem=refusal_of(error).detail)
    return redirect(request, f"{PREFIX}/runs/{quote(started.id)}")


@forms.post("/runs/{run_id:path}/{action}")
async def act(run_id: str, action: str, request: Request, runs: Serving, session: Viewing, form: Form) -> Response:
    """Send a message to a run, stop it, or cancel it."""
    try:
        match action:
            case "messages":
                # The id is that of the form: sent twice, it is one message.
                fields = {"text": form.get("text", ""), "id": form.get("message_id") or None}
                await runs.send_message(session.caller, run_id, parse_update(SendMessage, fields))
            case "stop":
                stopping = parse_update(Stop, {"reason": form.get("reason") or None})
                await runs.stop(session.caller, run_id, stopping)
            case "cancel":
                await runs.cancel(session.caller, run_id)
            case _:
                raise Problem(404, "path_not_found", f"There is no action {action[:80]!r}.")
    except KNOWN_ERRORS as error:
        return _to_run(request, run_id, problem=refusal_of(error).detail)
    return _to_run(request, run_id, done=_SENTENCES[action])


async def _why_not_waiting(runs: Runs, caller: Caller, form: dict[str, str]) -> str:
    """Why a call does not wait any more: who was first."""
    run_id, call_id = form.get("run", ""), form.get("call_id")
    total = (await runs.steps(caller, run_id, 0, 1))["total"]
    steps = (await runs.steps(caller, run_id, max(0, total - LOOKED_AT), LOOKED_AT))["steps"]
    decisions = [
        call["decision"]
        for step in reversed(steps)
        for call in step["tool_calls"]
        if call["id"] == call_id and call.get("decision")
    ]
    if not decisions:
        return "This call does not wait for a person any more."
    how = _DECIDED.get(decisions[0]["decision"], decisions[0]["decision"])
    who = f" by {decisions[0]['by']}" if decisions[0].get("by") else ""
    return f"Somebody was first: this call was {how}{who} at {decisions[0]['at'][11:19]} UTC."


def refusal_of(error: Exception) -> Problem:
    """Why something was not accepted. The server's own faults are raised again."""
    problem = problem_of(error)
    if problem.code == "internal_error":
        raise error
    if isinstance(error, RunEndedError):
        return Problem(409, "run_ended", "The run has ended.")
    return problem


def _numbers(form: dict[str, str]) -> dict[str, int | float]:
    numbers: dict[str, int | float] = {}
    for name, kind in _LIMITS.items():
        if text := form.get(name, "").strip():
            try:
                numbers[name] = kind(text)
            except ValueError:
                raise Problem(422, "invalid_input", f'"{name}" is {text[:80]!r}; it must be a number.') from None
    return numbers


def _to_run(request: Request, run_id: str, **says: str) -> Response:
    return _with_note(redirect(request, f"{PREFIX}/runs/{quote(run_id)}"), request, says)


def to_decide(request: Request, back: dict[str, str], **says: str) -> Response:
    """Send the browser to what waits for a person, with a note. `back`: the page's query."""
    query = f"?{urlencode(back)}" if back else ""
    return _with_note(redirect(request, f"{PREFIX}/decide{query}"), request, says)


def _with_note(response: Response, request: Request, says: dict[str, str]) -> Response:
    for kind, text in says.items():
        leave_note(request, response, kind, text)
    return response
