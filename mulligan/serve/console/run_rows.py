"""What the list of runs shows of each run beside what Temporal lists: its steps, failures, cost, and what it waits for."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError

from mulligan.client.connect import explain_unreadable_data
from mulligan.client.find_runs import RunQuery
from mulligan.client.read_run import read_steps
from mulligan.run_view.step_view import is_models_mistake
from mulligan.serve.caller import Caller
from mulligan.serve.console.step_events import page_of
from mulligan.serve.problems import Problem
from mulligan.serve.runs import RunInfo, Runs
from mulligan.wire.run_status import is_open

SECONDS_FOR_RUN = 4.0
"""How long a list waits for one of its runs; its numbers are left out then."""
PARALLEL_READS = 10
MOST_REMEMBERED = 2_000
"""Runs that have ended, and so do not change, whose numbers are kept."""
DAY_RUNS = 500
"""Runs of a last day that are counted."""
SECONDS_FOR_DAY = 5.0
"""How long a page waits for the runs of a day. Those that have ended are kept, so that the next view reads further ones."""


@dataclass(frozen=True)
class RunRow:
    """A run of the list: `run` is what `GET /api/runs` has of it. None: not known."""

    run: dict[str, Any]
    info: RunInfo | None

    @property
    def started_by(self) -> str:
        """Who started the run, as far as that is known: a user, a schedule, or the run that called it."""
        run = self.run
        schedule = f"the schedule {run['schedule']}" if run.get("schedule") else ""
        return schedule or run.get("parent") or run.get("user") or ""

    @property
    def waits_for_person(self) -> bool:
        """Whether a person is waited for: by the run, or by a sub-agent's."""
        return self.info is not None and self.info.waits_for_person

    def number(self, name: str) -> Any:
        """`steps`, `recovered_failures` or `cost`; None if it is not known."""
        return self.info.number(name) if self.info else None


@dataclass
class DayCost:
    """What runs of a day have cost, in USD: `read` runs of which are known, with `unpriced` ones of whose models no price is
    known. `unread`: further runs, which could not be read in time.
    """

    usd: float = 0.0
    read: int = 0
    unpriced: int = 0
    unread: int = 0

    def add(self, info: RunInfo | None) -> None:
        """Count a run; None: it could not be read."""
        self.unread += info is None
        if info is not None:
            self.read += 1
            self.unpriced += info.is_price_unknown
            self.usd += info.number("cost") or 0.0


@dataclass
class AgentDay:
    """An agent's runs of the last 24 hours.

    `mistakes`: the models' mistakes that runs recovered from, by (tool, kind), of the `looked_at` newest runs that recovered
    from anything; `failures`: the other recovered failures of these. `unread`: the runs that could not be read in time,
    whose failures are missing from `recovered`. `is_complete`: whether all runs of the day were counted.
    """

    statuses: Counter[str]
    cost: DayCost
    unread: int
    recovered: int
    mistakes: Counter[tuple[str, str]]
    failures: Counter[tuple[str, str]]
    looked_at: int
    is_complete: bool

    @property
    def total(self) -> int:
        """The number of all runs."""
        return self.statuses.total()


@dataclass(frozen=True)
class Failures:
    """The recovered failures of a run, by (tool, kind). `mistakes`: those that are mistakes of the model. `places`: where
    the first call with each is, as the query and fragment of the run's page.
    """

    counts: Counter[tuple[str, str]]
    mistakes: Counter[tuple[str, str]]
    places: dict[tuple[str, str], str]


@dataclass(frozen=True)
class ReadDay:
    """The runs of the last 24 hours, those that have ended first. `infos` and `failures`: what was read of them in time, by
    the places of the runs. `is_complete`: whether these are all runs of the day.
    """

    runs: list[dict[str, Any]]
    is_complete: bool
    infos: dict[int, RunInfo]
    failures: dict[int, Failures]


class RunRows:
    """Reads rows. What is kept is of ended runs only, by id and start, for callers who have found them again."""

    def __init__(self) -> None:
        self._ended: OrderedDict[tuple[str, str], RunInfo] = OrderedDict()
        self._failures: OrderedDict[tuple[str, str], Failures] = OrderedDict()

    async def read(self, runs: Runs, caller: Caller, listed: list[dict[str, Any]]) -> list[RunRow]:
        """The rows of these runs, in their order."""
        limit = asyncio.Semaphore(PARALLEL_READS)

        async def read_one(run: dict[str, Any]) -> RunRow:
            async with limit:
                return RunRow(run, await self._info(runs, caller, run))

        return list(await asyncio.gather(*(read_one(run) for run in listed)))

    async def day(self, runs: Runs, caller: Caller, agent: str) -> AgentDay:
        """An agent's last day, from what can be read of its runs within a few seconds."""
        read = await self.read_day(runs, caller, agent)
        counted = [each for each in read.failures.values() if each.counts]
        cost = DayCost()
        for number in range(len(read.runs)):
            cost.add(read.infos.get(number))
        return AgentDay(
            cost=cost,
            statuses=Counter(run["status"] for run in read.runs),
            unread=len(read.runs) - len(read.infos),
            recovered=sum(info.number("recovered_failures") or 0 for info in read.infos.values()),
            mistakes=sum((each.mistakes for each in counted), Counter()),
            failures=sum((each.counts - each.mistakes for each in counted), Counter()),
            looked_at=len(counted),
            is_complete=read.is_complete,
        )

    async def read_day(
        self, runs: Runs, caller: Caller, agent: str | None = None, most_open: int = DAY_RUNS
    ) -> ReadDay:
        """Read the runs of the last day that the caller may see, each with its failures, for a few seconds at most.

        Open runs come last: those whose workers are away take the time that is left, and not that of the failures of others.
        `agent`: None for those of all agents. `most_open`: how many open ones are read.
        """
        listed, is_complete = await self.list_day(runs, caller, agent)
        day = ReadDay(sorted(listed, key=lambda run: is_open(run["status"])), is_complete, {}, {})
        limit = asyncio.Semaphore(PARALLEL_READS)

        async def read_one(number: int, run: dict[str, Any]) -> None:
            async with limit:
                if (info := await self._info(runs, caller, run)) is None:
                    return
                day.infos[number] = info
                recovered = info.number("recovered_failures")
                if recovered and (found := await self.failures_of(runs, run, recovered)) is not None:
                    day.failures[number] = found

        to_read = day.runs[: sum(not is_open(run["status"]) for run in listed) + most_open]
        with suppress(TimeoutError):  # the page says how many runs were looked at
            async with asyncio.timeout(SECONDS_FOR_DAY):
                await asyncio.gather(*(read_one(*each) for each in enumerate(to_read)))
        return day

    async def list_day(self, runs: Runs, caller: Caller, agent: str | None = None) -> tuple[list[dict[str, Any]], bool]:
        """The runs that were started in the last 24 hours, 500 or a few more at most, and whether these are all of them.
        `agent`: None for those of all agents.
        """
        query = RunQuery(agent=agent, since=datetime.now(UTC) - timedelta(days=1), sub_agents=True)
        cursor, listed = None, list[dict[str, Any]]()
        while len(listed) < DAY_RUNS:
            page = await runs.find(caller, query, limit=100, cursor=cursor)
            listed += page.runs
            if (cursor := page.next) is None:
                break
        return listed, cursor is None

    async def _info(self, runs: Runs, caller: Caller, run: dict[str, Any]) -> RunInfo | None:
        key = run["id"], run["started"]
        if key in self._ended:
            return self._ended[key]
        try:
            async with asyncio.timeout(SECONDS_FOR_RUN):
                info = await runs.read(caller, run["id"], progress_beside_result=False)
        except Exception as error:
            if not (isinstance(error, _UNANSWERED) or explain_unreadable_data(error)):
                raise
            return None
        if info.ended is not None:
            _keep(self._ended, key, info)
        return info

    async def failures_of(self, runs: Runs, run: dict[str, Any], recovered: int) -> Failures | None:
        """The recovered failures of a run, whose number is `recovered`; None: it cannot be read now."""
        key = run["id"], run["started"]
        if key in self._failures:
            return self._failures[key]
        try:
            async with asyncio.timeout(SECONDS_FOR_RUN):
                steps = await read_steps(runs.client, runs.client.get_workflow_handle(run["id"]))
        except _UNANSWERED:
            return None
        failures = failures_in(steps)
        if key in self._ended:
            if failures.counts.total() > recovered:  # its last step failed the run: nobody recovers from that
                failures = failures_in(steps[:-1])
            _keep(self._failures, key, failures)
        return failures


def failures_in(steps: list[dict[str, Any]]) -> Failures:
    """The recovered failures of these steps (`Step` as JSON). A rejected answer counts as a call of `(the answer)`."""
    failures = Failures(Counter(), Counter(), {})

    def count(tool: str, kind: str, step: int, anchor: str, *, is_mistake: bool) -> None:
        failures.counts[tool, kind] += 1
        failures.mistakes[tool, kind] += is_mistake
        failures.places.setdefault((tool, kind), f"?page={page_of(step)}#step-{step}-{anchor}")

    for step in steps:
        if step.get("error"):
            count("(the answer)", step["error"]["kind"], step["step"], "rejected", is_mistake=True)
        for number, call in enumerate(step["tool_calls"], 1):
            if call["result"] and call["result"]["error"] and not _was_stopped(call):
                kind = call["result"]["error"]["kind"]
                is_mistake = is_models_mistake(kind, call["attempts"])
                count(call["name"], kind, step["step"], f"call-{number}", is_mistake=is_mistake)
    return failures


def _was_stopped(call: dict[str, Any]) -> bool:
    """Whether a call has failed only because its run was stopped: nobody recovers from that."""
    decision = call.get("decision")
    is_denied = call["result"]["error"]["kind"] == "denied"
    return bool((decision and decision["decision"] == "stopped") or (is_denied and call.get("deferred")))


def _keep(cache: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    cache[key] = value
    while len(cache) > MOST_REMEMBERED:
        cache.popitem(last=False)


_UNANSWERED = (Problem, RPCError, WorkflowQueryFailedError, TimeoutError)
"""What is raised where a run cannot be read now."""
