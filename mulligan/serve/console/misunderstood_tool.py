"""Over all agents: the tool that models misunderstood most in the last day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mulligan.serve.caller import Caller
from mulligan.serve.console.run_rows import DayCost, Failures, RunRows
from mulligan.serve.runs import Runs

KINDS = frozenset({"unknown_tool", "invalid_json", "invalid_arguments"})
"""Kinds of failures that show that the model did not understand which tools there are, or how one is called. A tool that
was called as its schema says, and failed, was understood.
"""
MOST_OPEN_RUNS = 50
"""Open runs that are looked at: they change, so that each view asks their workers again."""


@dataclass(frozen=True)
class Misunderstanding:
    """How often a tool was misunderstood in one way. `run`: the id of the newest run where it happened; `place`: where, as
    the query and fragment of that run's page.
    """

    kind: str
    count: int
    run: str
    place: str


@dataclass(frozen=True)
class MisunderstoodTool:
    """A tool of an agent that was misunderstood, the most frequent kind first."""

    name: str
    agent: str
    kinds: list[Misunderstanding]


@dataclass(frozen=True)
class ToolsDay:
    """The last 24 hours: the tool that was misunderstood most (None: none was) in the `looked_at` runs that were read, of
    `total`. `is_complete`: whether `total` counts all runs. `unread_failures`: the runs that have recovered from something
    which could not be read in time.
    """

    tool: MisunderstoodTool | None
    looked_at: int
    total: int
    is_complete: bool
    costs: dict[str, DayCost] = field(default_factory=dict)
    """By the names of agents."""
    unread_failures: int = 0

    def cost_of(self, agent: str) -> DayCost:
        """What the runs of an agent have cost."""
        return self.costs.get(agent, DayCost())


async def read_tools_day(rows: RunRows, runs: Runs, caller: Caller) -> ToolsDay:
    """Read the runs of the last day that the caller may see."""
    read, costs = await rows.read_day(runs, caller, most_open=MOST_OPEN_RUNS), dict[str, DayCost]()
    for number, run in enumerate(read.runs):
        costs.setdefault(run.get("agent") or "", DayCost()).add(read.infos.get(number))
    failures_of_runs = [(read.runs[number], read.failures[number]) for number in sorted(read.failures)]
    unread = sum(bool(info.number("recovered_failures")) for info in read.infos.values()) - len(failures_of_runs)
    return ToolsDay(
        most_misunderstood(failures_of_runs),
        looked_at=len(read.infos) - unread,
        total=len(read.runs),
        is_complete=read.is_complete,
        costs=costs,
        unread_failures=unread,
    )


def most_misunderstood(failures_of_runs: Sequence[tuple[dict[str, Any], Failures]]) -> MisunderstoodTool | None:
    """The tool that was misunderstood most in these runs, the newest run first; None: none was. A run is an entry of
    `GET /api/runs`. Tools of different agents are different tools, whatever their names.
    """
    tools, kinds = Counter[tuple[str, str]](), Counter[tuple[str, str, str]]()
    seen: dict[tuple[str, str, str], tuple[str, str]] = {}
    for run, failures in failures_of_runs:
        for (tool, kind), count in failures.mistakes.items():
            if count and kind in KINDS:
                key = run.get("agent") or "", tool, kind
                tools[key[:2]] += count
                kinds[key] += count
                seen.setdefault(key, (run["id"], failures.places[tool, kind]))
    if not tools:
        return None
    [((agent, name), _)] = tools.most_common(1)
    return MisunderstoodTool(
        name,
        agent,
        [Misunderstanding(key[2], count, *seen[key]) for key, count in kinds.most_common() if key[:2] == (agent, name)],
    )
