"""What the page of a run shows, read part by part: a part that cannot be read is left out, and the page says why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.service import RPCError

from mulligan.client.connect import explain_unreadable_data
from mulligan.client.find_runs import RunQuery
from mulligan.client.settings import settings
from mulligan.observe.trace_ids import trace_id_of_run
from mulligan.prices import Prices
from mulligan.run_input import RunInput
from mulligan.run_view.run_view import Entry, PriceOf, RunView
from mulligan.run_view.step_view import StepView
from mulligan.serve.caller import Caller
from mulligan.serve.console.rendering import anchor_of
from mulligan.serve.console.step_events import STEPS_OF_PAGE, EndedRuns, StepEvents, page_of, read_step_events
from mulligan.serve.console.timeline import Timeline, draw_timeline
from mulligan.serve.problems import Problem, problem_of
from mulligan.serve.runs import RunInfo, Runs
from mulligan.trace_view.ui_links import jaeger_link, temporal_link
from mulligan.wire.event_types import RunEnded
from mulligan.wire.run_status import status_in_temporal

SECONDS_FOR_PROGRESS, SECONDS_FOR_PART = 3.0, 15.0
"""How long a page waits for a run's workers."""
MOST_FORKS, SECONDS_FOR_FORKS = 10, 5.0
_NO_WORKER = (
    "No worker of the run answers now, and only a worker of its task queue can tell its steps. Start one (mulligan worker): "
    "this page then shows them. Nothing is lost: Temporal has the run, which continues when a worker serves it."
)
_NO_FORKS = "The forks of this run could not be listed now."
_FORKS_OF_NEWEST = "Not all runs were looked through for forks of this one: `mulligan list --forked-from` does."
_Part = TypeVar("_Part")


@dataclass
class RunPage:
    """A run's page. `problems`: sentences on the parts that could not be read."""

    id: str
    described: WorkflowExecutionDescription
    info: RunInfo | None = None
    input: RunInput | None = None
    events: StepEvents | None = None
    entries: list[Entry] = field(default_factory=list)
    """The steps of the page, and what happened between them."""
    timeline: Timeline | None = None
    forks: list[dict[str, Any]] = field(default_factory=list)
    """The newest runs that were forked from it and that the caller may see, as lists show them."""
    links: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    prefix: str = ""
    """What the ids of its steps begin with, where it is part of another page."""

    @property
    def steps(self) -> list[StepView]:
        """The steps of the page."""
        return [entry for entry in self.entries if isinstance(entry, StepView)]

    @property
    def is_open(self) -> bool:
        """Whether the run goes on."""
        return self.described.status == WorkflowExecutionStatus.RUNNING

    @property
    def ended_run(self) -> str | None:
        """The id of Temporal's run if it has ended."""
        return None if self.is_open else self.described.run_id

    @property
    def status(self) -> str:
        """The run's status."""
        if self.info is None:
            return status_in_temporal(self.described.status.name) if self.described.status else "unknown"
        return self.info.status

    @property
    def page(self) -> int:
        """The number of the page of steps."""
        return page_of(self.events.first) if self.events else 1

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return max(1, -(-self.events.total // STEPS_OF_PAGE)) if self.events else 1

    @property
    def is_followed(self) -> bool:
        """Whether the page shows what comes: it has the newest steps, or none as no worker answers yet."""
        return self.is_open and (self.page == self.pages if self.events else _NO_WORKER in self.problems)

    @property
    def dearest(self) -> StepView | None:
        """The shown step that has cost most; None: there are no costs to compare."""
        steps = [step for step in self.steps if step.cost]
        return max(steps, key=lambda step: step.cost or 0.0) if len(steps) > 1 else None

    @property
    def mistakes(self) -> list[StepView]:
        """The shown steps in which something failed."""
        return [step for step in self.steps if step.is_mistaken]

    def number(self, name: str) -> Any:
        """A number of the result, or of the progress of an open run; None: not known."""
        return self.info.number(name) if self.info else None


async def read_run_page(
    runs: Runs, caller: Caller, run_id: str, page: int | None, ended: EndedRuns, prefix: str = ""
) -> RunPage:
    """Read the page of a run. `prefix`: of the page.

    Raises:
        Problem: there is no such run that the caller may see.
    """
    run_page = RunPage(run_id, await runs.describe(caller, run_id), prefix=prefix)
    run_page.info = await _part(run_page, _read_info(runs, caller, run_page.described))
    run_page.input = await _part(run_page, runs.input(caller, run_id))
    if run_page.info and run_page.info.waiting_for and run_page.info.waiting_for["kind"] == "worker":
        run_page.problems.append(_NO_WORKER)  # nobody would answer the query for its events
    else:
        run_page.events = await _part(run_page, read_step_events(runs.client, run_id, page, ended, run_page.ended_run))
    if run_page.events is not None:
        run_page.entries = _entries(run_page.events, is_alone=bool(prefix))
        now = run_page.described.close_time or datetime.now(UTC)
        run_page.timeline = draw_timeline(run_page.steps, now)
    if not prefix:
        run_page.forks = await _part(run_page, _read_forks(runs, caller, run_page)) or []
    await _add_links(run_page, runs)
    return run_page


async def first_failure(runs: Runs, caller: Caller, run_id: str, ended: EndedRuns) -> str:
    """Where the first recovered failure of a run is, as the query and fragment of the run's page. Empty: there is none, or
    the steps cannot be read now, which that page explains.

    Raises:
        Problem: there is no such run that the caller may see.
    """
    run_page = RunPage(run_id, await runs.describe(caller, run_id))
    return await _part(run_page, _find_failure(runs, run_page, ended)) or ""


async def _find_failure(runs: Runs, run_page: RunPage, ended: EndedRuns) -> str:
    number, pages = 1, 1
    while number <= pages:
        read = await read_step_events(runs.client, run_page.id, number, ended, run_page.ended_run)
        for step in RunView.of(read.events).steps.values():
            if step.rejected is not None:
                return f"?page={number}#{anchor_of(step)}-rejected"
            if failed := next((call for call in step.calls.values() if call.error), None):
                return f"?page={number}#{anchor_of(failed)}"
        number, pages = number + 1, page_of(max(1, read.total))
    return ""


def _entries(read: StepEvents, *, is_alone: bool) -> list[Entry]:
    """The entries of the page. Unless it `is_alone`, its steps know those of other pages that they correct, or that
    correct them.
    """
    around = (
        [] if is_alone else [each for each in part if hasattr(each, "step")] for part in (read.before, read.after)
    )
    before, after = around
    view = RunView.of([*before, *read.events, *after], read_price_of())
    return [each for each in view.entries if not isinstance(each, StepView) or read.first <= each.number <= read.last]


def read_price_of() -> PriceOf:
    """A function that returns a model's price, by this server's table; None: it is not known."""
    return Prices.load(settings().prices).of


async def _read_info(runs: Runs, caller: Caller, described: WorkflowExecutionDescription) -> RunInfo:
    """What the API has of the run; without its progress if no worker answers soon."""
    try:
        async with asyncio.timeout(SECONDS_FOR_PROGRESS):
            return await runs.read(caller, described.id, progress_beside_result=False)
    except TimeoutError:
        return await RunInfo.of(runs.client, described)


async def _read_forks(runs: Runs, caller: Caller, run_page: RunPage) -> list[dict[str, Any]]:
    """The newest forks. No worker is asked for them: that Temporal does not list them says nothing about workers."""
    try:
        async with asyncio.timeout(SECONDS_FOR_FORKS):
            page = await runs.find(caller, RunQuery(forked_from=run_page.id), limit=MOST_FORKS)
    except (RPCError, TimeoutError):
        run_page.problems.append(_NO_FORKS)
        return []
    if page.next is not None and len(page.runs) < MOST_FORKS:
        run_page.problems.append(_FORKS_OF_NEWEST)
    return page.runs


async def _part(run_page: RunPage, reading: Awaitable[_Part]) -> _Part | None:
    """A part of the page; None where it cannot be read, which the page says."""
    try:
        async with asyncio.timeout(SECONDS_FOR_PART):
            return await reading
    except Exception as error:
        problem = _problem(error)
        if problem is None:
            raise
        if problem not in run_page.problems:
            run_page.problems.append(problem)
        return None


def _problem(error: Exception) -> str | None:
    """Why a part cannot be read, for the person who looks; None: it is the server's own fault."""
    if explain_unreadable_data(error):
        return (
            "This run is encrypted, or its data is in external storage, and this server has no key for it. Start "
            "`mulligan serve` with the MULLIGAN_ENCRYPTION_KEYS (and MULLIGAN_EXTERNAL_STORAGE) of the run's worker; it "
            "cannot be decrypted here."
        )
    if isinstance(error, (RPCError, TimeoutError)):
        return _NO_WORKER
    if isinstance(error, WorkflowQueryFailedError):
        return "This workflow does not answer the queries of an agent's run: it has no agent of Mulligan."
    if isinstance(error, Problem):
        return error.detail
    problem = problem_of(error)
    return problem.detail if problem.code != "internal_error" else None


async def _add_links(run_page: RunPage, runs: Runs) -> None:
    """Links to UIs that are configured, or that answer."""
    config, described = runs.client.service_client.config, run_page.described
    if link := await temporal_link(config.target_host, runs.client.namespace, run_page.id, described.run_id):
        run_page.links["Temporal"] = link
    trace_id = run_page.number("trace_id") or _trace_of(run_page)
    if trace_id and (link := await jaeger_link(trace_id)):
        run_page.links["Jaeger"] = link


def _trace_of(run_page: RunPage) -> str | None:
    """The trace of a run that has no result yet. A run that joined another trace names it in its input."""
    for each in run_page.events.events if run_page.events else []:
        if isinstance(each, RunEnded) and each.result:
            return each.result.trace_id
    info = run_page.described.raw_description.workflow_execution_info
    if run_page.input is None or info.parent_execution.workflow_id:
        return None
    if run_page.input.traceparent:
        return run_page.input.traceparent.split("-")[1]
    return trace_id_of_run(run_page.id, info.first_run_id or run_page.described.run_id)
