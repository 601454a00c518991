"""The pages of the console, and the stream of a run's page. What people send is in console_forms.py."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import PlainTextResponse, Response
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from mulligan.client.find_runs import RunQuery
from mulligan.client.read_run import UNDECODABLE
from mulligan.features import installed
from mulligan.run_view.run_view import Entry, RunView
from mulligan.run_view.step_view import CallView
from mulligan.serve.caller import Caller
from mulligan.serve.console.compare_page import compare_pages
from mulligan.serve.console.console_forms import forms
from mulligan.serve.console.fork_page import fork_pages
from mulligan.serve.console.live_steps import live_frames
from mulligan.serve.console.misunderstood_tool import read_tools_day
from mulligan.serve.console.rendering import HEADERS, LINKS, ProblemPage, fragment, page, render, render_cards
from mulligan.serve.console.run_page import first_failure, read_price_of, read_run_page
from mulligan.serve.console.run_rows import RunRows
from mulligan.serve.console.signed_in import PREFIX, Viewing, redirect, sign_in_pages
from mulligan.serve.console.step_events import EndedRuns, page_of, read_step_events
from mulligan.serve.console.waiting_counts import Counted, Counts
from mulligan.serve.console.waiting_page import read_waiting_page
from mulligan.serve.http_protocol import EventStream, Protocol, Serving, kept
from mulligan.serve.problems import Problem
from mulligan.serve.runs import Runs
from mulligan.wire.checked_result import MOST_INT
from mulligan.wire.run_status import STATUSES

RUNS_OF_PAGE = 25
SECONDS_FOR_AGENTS = 0.5
"""How long the list of runs waits for the names of agents to filter by."""
ASSET_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
ASSET_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}

pages = APIRouter(include_in_schema=False)
_assets = {
    each.name: each.read_text("utf-8")
    for each in (files("mulligan.serve.console") / "assets").iterdir()
    if each.is_file()
}


Rows = Annotated[RunRows, Depends(kept(RunRows))]
Ended = Annotated[EndedRuns, Depends(kept(EndedRuns))]
"""What this application keeps of ended runs, and of their events."""


@pages.head("/")
@pages.get("/")
async def show_runs(  # noqa: PLR0913 - a filter is a parameter
    request: Request,
    runs: Serving,
    session: Counted,
    rows_of_runs: Rows,
    agent: str = "",
    status: str = "",
    tenant: str = "",
    since: str = "",
    until: str = "",
    id: str = "",  # noqa: A002 - the query's name
    forked_from: str = "",
    cursor: str = "",
    part: str = "",
) -> Response:
    """The list of runs."""
    filters = {"agent": agent, "status": status, "tenant": tenant, "since": since, "until": until, "id": id}
    filters["forked_from"] = forked_from
    query = RunQuery(
        agent=agent.strip() or None,
        status=status.strip() or None,
        tenant=tenant.strip() or None,
        since=_time("since", since),
        until=_time("until", until),
        id_prefix=id.strip()[:500] or None,
        sub_agents=bool(id.strip()),
        forked_from=forked_from.strip()[:1_000] or None,
    )
    runs_page = await runs.find(session.caller, query, limit=RUNS_OF_PAGE, cursor=cursor or None)
    rows = await rows_of_runs.read(runs, session.caller, runs_page.runs)
    values: dict[str, Any] = {"rows": rows, "filters": filters, "next": runs_page.next, "cursor": cursor}
    if part == "rows":
        return fragment(request, session, "_run_rows.html", **values)
    names = {*await _served_agents(runs, session.caller), *(run.get("agent") for run in runs_page.runs), agent}
    agents = sorted(name for name in names if name)
    return page(request, session, "runs.html", title="Runs", statuses=STATUSES, agents=agents, **values)


@pages.get(f"{PREFIX}/decide")
async def show_waiting(
    request: Request, runs: Serving, session: Viewing, counts: Counts, run: str = "", part: str = ""
) -> Response:
    """Everything that waits for a person. The part `all` is the count in the navigation."""
    session = replace(session, waiting=await counts.read(runs, session.caller) if run or part == "all" else "")
    if part == "all":
        return fragment(request, session, "_all_waiting.html")
    waiting = await read_waiting_page(runs, session.caller, run or None)
    if not run:
        session = replace(session, waiting=counts.note(session.caller, waiting.pending))
    if part == "count":
        return fragment(request, session, "_waiting_count.html", keys=[call.key for call in waiting.calls])
    cards = render_cards(request, session, waiting.calls, run)
    below = [await each(request, runs, session, run) for each in BELOW_WAITING]
    return page(request, session, "decide.html", title="Decide", waiting=waiting, cards=cards, run=run, below=below)


@pages.get(f"{PREFIX}/start")
async def show_start(request: Request, runs: Serving, session: Counted, agent: str = "") -> Response:
    """The form that starts a run."""
    agents = await runs.agents(session.caller)
    form = {"agent": agent, "form_id": secrets.token_hex(16)}
    return page(request, session, "start.html", title="Start a run", agents=agents, form=form, refused="")


@pages.get(f"{PREFIX}/agents")
async def show_agents(request: Request, runs: Serving, session: Counted, rows: Rows) -> Response:
    """The agents that the workers serve, and the tool that models misunderstood most in the last day."""
    agents, day = await asyncio.gather(runs.agents(session.caller), read_tools_day(rows, runs, session.caller))
    return page(request, session, "agents.html", title="Agents", agents=agents, day=day)


@pages.get(f"{PREFIX}/agents/{{name:path}}")
async def show_agent(name: str, request: Request, runs: Serving, session: Counted, rows: Rows) -> Response:
    """An agent: its tools, its models, and its last day."""
    agent = await runs.agent(session.caller, name)
    if "tools" not in agent:
        raise Problem(503, "no_worker", "No worker answers now, so that the agent is not known. Start one.")
    day = await rows.day(runs, session.caller, name)
    return page(request, session, "agent.html", title=name, agent=agent, day=day)


@pages.get(f"{PREFIX}/runs/{{run_id:path}}/live")
async def follow_run(
    run_id: str,
    request: Request,
    runs: Serving,
    session: Viewing,
    since: str = "",
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """The stream of a run's page."""
    watched = await runs.watch(session.caller, run_id, last_event_id or since)
    if watched is None:
        return Response(status_code=204)
    root = request.scope.get("root_path", "")

    def render_entry(entry: Entry) -> str:
        return render("_entry.html", root, entry=entry, run_id=run_id, session=session)

    return EventStream(live_frames(watched, render_entry, read_price_of()))


@pages.get(f"{PREFIX}/runs/{{run_id:path}}/text")
async def show_text(
    run_id: str,
    runs: Serving,
    session: Viewing,
    ended: Ended,
    step: Annotated[int, Query(ge=1)],
    call: int = 0,
    part: str = "text",
) -> Response:
    """A text of a run as a whole, as plain text: a page has only its beginning."""
    described = await runs.describe(session.caller, run_id)
    ended_run = None if described.status == WorkflowExecutionStatus.RUNNING else described.run_id
    events = await read_step_events(runs.client, run_id, page_of(step), ended, ended_run)
    viewed = RunView.of(events.events).steps.get(step)
    calls = list(viewed.calls.values()) if viewed else []
    text = viewed.text if viewed and not call else _text_of(calls[call - 1], part) if 0 < call <= len(calls) else None
    if text is None:
        raise Problem(404, "path_not_found", f"Step {step} of this run has no such text.")
    return PlainTextResponse(text.encode("utf-8", "replace"), headers={**HEADERS, "Content-Security-Policy": "sandbox"})


@pages.get(f"{PREFIX}/runs/{{run_id:path}}/context")
async def show_context(
    run_id: str,
    request: Request,
    runs: Serving,
    session: Counted,
    step: Annotated[int, Query(ge=1, le=MOST_INT)],
) -> Response:
    """What the model was sent in a step."""
    context = await runs.context(session.caller, run_id, step)
    title = f"What the model saw in step {step}"
    return page(request, session, "context.html", title=title, context=context, run_id=run_id)


@pages.get(f"{PREFIX}/runs/{{run_id:path}}/first-failure")
async def show_first_failure(run_id: str, request: Request, runs: Serving, session: Viewing, ended: Ended) -> Response:
    """Lead to the first recovered failure of a run, on whichever page of its steps it is."""
    place = await first_failure(runs, session.caller, run_id, ended)
    return redirect(request, f"{PREFIX}/runs/{quote(run_id)}{place}")


@pages.get(f"{PREFIX}/runs/{{run_id:path}}/{{action}}-it")
async def confirm(run_id: str, action: str, request: Request, runs: Serving, session: Counted) -> Response:
    """The page that asks whether a run shall be stopped or cancelled."""
    if action not in ("stop", "cancel"):
        raise Problem(404, "path_not_found", f"There is no action {action[:80]!r}.")
    await runs.describe(session.caller, run_id)
    return page(request, session, "confirm.html", title=f"{action.title()} a run", run_id=run_id, action=action)


# Last, as an id may contain slashes.
@pages.get(f"{PREFIX}/runs/{{run_id:path}}")
async def show_run(
    run_id: str,
    request: Request,
    runs: Serving,
    session: Counted,
    ended: Ended,
    page_number: Annotated[int | None, Query(ge=1, alias="page")] = None,
    part: str = "",
) -> Response:
    """A run: its transcript, its steps over time, and what can be done with it."""
    prefix = f"run-{secrets.token_hex(3)}-" if part == "sub_run" else ""
    run = await read_run_page(runs, session.caller, run_id, page_number, ended, prefix)
    values: dict[str, Any] = {"run": run, "run_id": run_id, "message_id": secrets.token_hex(8)}
    if part == "sub_run":
        return fragment(request, session, f"_{part}.html", **values)
    return page(request, session, "run.html", title=run_id, **values)


assets = APIRouter(prefix=f"{PREFIX}/assets", include_in_schema=False)


@assets.get("/{name}")
async def send_asset(name: str) -> Response:
    """A file of the console: the stylesheet, a module, or the icon."""
    if name not in _assets:
        raise Problem(404, "path_not_found", f"There is no file {name[:80]!r}.")
    return Response(_assets[name], media_type=ASSET_TYPES[name.rpartition(".")[2]], headers=ASSET_HEADERS)


async def _served_agents(runs: Runs, caller: Caller) -> list[str]:
    """The names of the agents that the workers serve, as far as one answers soon."""
    reading = asyncio.ensure_future(runs.agents(caller))
    reading.add_done_callback(lambda read: read.cancelled() or read.exception())  # it may fail after the page was sent
    try:
        return [agent["name"] for agent in await asyncio.wait_for(asyncio.shield(reading), SECONDS_FOR_AGENTS)]
    except (Problem, RPCError, TimeoutError, *UNDECODABLE):
        return []


def _time(name: str, text: str) -> datetime | None:
    """A time of a filter; without an offset it is UTC."""
    if not text.strip():
        return None
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        sentence = f'"{name}" is {text[:80]!r}; it must be a date, such as 2026-11-21T12:00.'
        raise Problem(422, "invalid_input", sentence) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _text_of(call: CallView, part: str) -> str | None:
    if part == "arguments":
        return call.raw_arguments
    return call.result.text if part == "result" and call.result else None


PAGES = [*installed("pages").values()]
BELOW_WAITING = [each.below_waiting for each in PAGES if each.below_waiting is not None]
"""What features have to say below the calls that wait: each returns HTML."""
LINKS.extend(each.link for each in PAGES if each.link is not None)
_of_features = filter(None, (each.router for each in PAGES))
ROUTERS = (assets, sign_in_pages, fork_pages, forms, compare_pages, *_of_features, pages)
"""Each before those whose paths are more general."""
router = APIRouter()
for each in ROUTERS:
    router.include_router(each)
CONSOLE = Protocol(prefix=PREFIX, router=router, refuse=ProblemPage, public=["/", f"{PREFIX}/"], paths=["/"])
"""Its paths need no `Authorization`: each route but those of the sign-in and the assets begins with `Viewing`."""
