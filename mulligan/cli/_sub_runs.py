"""The sub-runs of a run: those of its sub-agents, and of their sub-agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from mulligan.cli._steps import run_line, step_views
from mulligan.schema.printable import printable

if TYPE_CHECKING:
    from temporalio.client import Client

    from mulligan.values import WaitingFor

MAX_QUERIES = 200
"""How many sub-runs of one run are queried for their steps. A worker may have to replay each of them."""
MAX_WAITS = 20
"""How many open sub-runs are asked for what they wait for."""


@dataclass
class SubRun:
    """A sub-run: the call that started it, its summary, its steps if they were read, and its own sub-runs.

    `waiting`: what it waits for, if it is open and its steps were read.
    """

    step: int
    call_id: str
    run: dict[str, Any]
    steps: list[dict[str, Any]] | None = None
    below: list[SubRun] = field(default_factory=list)
    waiting: WaitingFor | None = None

    def to_json(self) -> dict[str, Any]:
        """The entry in the JSON of `mulligan show`."""
        steps = {} if self.steps is None else {"steps": self.steps}
        return (
            {"step": self.step, "call_id": self.call_id, "run": self.run}
            | steps
            | ({} if self.waiting is None else {"waiting_for": self.waiting.model_dump(mode="json")})
            | {"sub_agents": [each.to_json() for each in self.below]}
        )


async def read_sub_runs(client: Client, root_id: str, steps: Sequence[dict[str, Any]], *, deep: bool) -> list[SubRun]:
    """The tree of sub-runs of a run that has these steps. `root_id`: the root run of the tree. `deep`: read their steps."""
    from mulligan.client.wait_reader import WaitReader

    queries_left, open_runs_left, parents = MAX_QUERIES, MAX_WAITS, set[str]()
    # Each sub-run of the tree says for itself what it waits for.
    reader = WaitReader(client, most_sub_runs=0)

    async def below(steps: Sequence[dict[str, Any]]) -> list[SubRun]:
        nonlocal queries_left, open_runs_left
        runs = [
            SubRun(step["step"], call["id"], call["run"])
            for step in steps
            for call in step["tool_calls"]
            if call.get("run")
        ]
        for each in runs:
            is_open = each.run["status"] == "running"
            if queries_left > 0 and (deep or is_open or each.run["id"] in parents):
                queries_left -= 1
                each.steps = await _read_steps(client, each.run)
                each.below = await below(each.steps)
                if deep and is_open and open_runs_left > 0:
                    open_runs_left -= 1
                    each.waiting = await reader.read_or_none(each.run["id"])
        return runs

    if any(call.get("run") for step in steps for call in step["tool_calls"]):
        parents = await _find_parents(client, root_id)
    tree = await below(steps)
    return tree if deep else [_without_steps(each) for each in tree]


async def _read_steps(client: Client, run: dict[str, Any]) -> list[dict[str, Any]]:
    from temporalio.service import RPCError

    from mulligan.client.read_run import read_steps

    handle = client.get_workflow_handle(run["id"])
    try:
        newest = (await handle.describe()).raw_description.workflow_execution_info
        if newest.first_run_id != run["run_id"]:  # the id was used again later
            handle = client.get_workflow_handle(run["id"], run_id=run["run_id"])
        steps = await read_steps(client, handle)
    except RPCError:  # its retention is over, or no worker answers: the summary of the calling run is shown
        return []
    if run["status"] == "running":
        run["steps"] = len(steps)
    return steps


async def _find_parents(client: Client, root_id: str) -> set[str]:
    """The ids of the runs of a tree that have sub-runs. They come from visibility, so no run is replayed."""
    from temporalio.service import RPCError

    parents: set[str] = set()
    try:
        quoted = root_id.replace('"', '\\"')
        async for child in client.list_workflows(f'RootWorkflowId = "{quoted}"', limit=1_000):
            if child.parent_id:
                parents.add(child.parent_id)
    except RPCError:  # the server does not support this: only --deep shows the whole tree
        pass
    return parents


def _without_steps(run: SubRun) -> SubRun:
    return replace(run, steps=None, below=[_without_steps(each) for each in run.below])


def sub_run_views(runs: Sequence[SubRun], step: int, call_id: str, indent: int = 6) -> Iterator[RenderableType]:
    """What is printed below a call of a step for its sub-runs. The call itself has a line for its own run already."""
    for each in runs:
        if (each.step, each.call_id) == (step, call_id):
            yield from _view(each, indent)


def _view(run: SubRun, indent: int) -> Iterator[RenderableType]:
    from mulligan import values

    for view in step_views(run.steps or (), partial(partial, sub_run_views, run.below)):
        yield Padding(view, (0, 0, 0, indent), expand=False)
    if run.waiting is not None:
        yield Padding(Text(f"… {printable(run.waiting.detail)}", style="dim"), (0, 0, 0, indent), expand=False)
    if run.steps is None:
        for each in run.below:
            yield Padding(run_line(values.SubRun.model_validate(each.run)), (0, 0, 0, indent), expand=False)
            yield from _view(each, indent + 2)
