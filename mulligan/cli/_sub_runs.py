"""The runs below a run: those of its sub-agents, and of theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.padding import Padding

from mulligan.cli._steps import run_line, step_view

if TYPE_CHECKING:
    from temporalio.client import Client

MOST = 200
"""Runs below one that are asked for their steps: each may have to be replayed for that."""


@dataclass
class SubRunSeen:
    """A run below another: by which call, what is known of it, its steps if these were asked for, and what is below."""

    step: int
    call_id: str
    run: dict[str, Any]
    steps: list[dict[str, Any]] | None = None
    below: list[SubRunSeen] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """All of it, by name."""
        steps = {} if self.steps is None else {"steps": self.steps}
        return (
            {"step": self.step, "call_id": self.call_id, "run": self.run}
            | steps
            | {"sub_agents": [each.to_json() for each in self.below]}
        )


async def sub_runs(client: Client, root_id: str, steps: Sequence[dict[str, Any]], *, deep: bool) -> list[SubRunSeen]:
    """The tree of runs below one that has these steps; `root_id`: of the whole tree. `deep`: with the steps of each."""
    left, parents = MOST, set[str]()

    async def below(steps: Sequence[dict[str, Any]]) -> list[SubRunSeen]:
        nonlocal left
        found = [
            SubRunSeen(step["step"], call["id"], call["run"])
            for step in steps
            for call in step["tool_calls"]
            if call.get("run")
        ]
        for each in found:
            is_open = each.run["status"] == "running"
            if left > 0 and (deep or is_open or each.run["id"] in parents):
                left -= 1
                each.steps = await _steps(client, each.run)
                each.below = await below(each.steps)
        return found

    if any(call.get("run") for step in steps for call in step["tool_calls"]):
        parents = await _parents_in(client, root_id)
    seen = await below(steps)
    return seen if deep else [_without_steps(each) for each in seen]


async def _steps(client: Client, run: dict[str, Any]) -> list[dict[str, Any]]:
    from temporalio.service import RPCError

    from mulligan.client.read_run import read_steps

    handle = client.get_workflow_handle(run["id"])
    try:
        newest = (await handle.describe()).raw_description.workflow_execution_info
        if newest.first_run_id != run["run_id"]:  # the id was used again since
            handle = client.get_workflow_handle(run["id"], run_id=run["run_id"])
        steps = await read_steps(client, handle)
    except RPCError:  # beyond its retention, or no worker of its queue answers: what the calling run knows is shown
        return []
    if run["status"] == "running":
        run["steps"] = len(steps)
    return steps


async def _parents_in(client: Client, root_id: str) -> set[str]:
    """The ids of the runs of a tree that have runs below. From visibility: no run is replayed for it."""
    from temporalio.service import RPCError

    found: set[str] = set()
    try:
        quoted = root_id.replace('"', '\\"')
        async for child in client.list_workflows(f'RootWorkflowId = "{quoted}"', limit=1_000):
            if child.parent_id:
                found.add(child.parent_id)
    except RPCError:  # a server without that: only --deep shows all of the tree
        pass
    return found


def _without_steps(seen: SubRunSeen) -> SubRunSeen:
    return SubRunSeen(seen.step, seen.call_id, seen.run, None, [_without_steps(each) for each in seen.below])


def views(seen: Sequence[SubRunSeen], step: int, call_id: str, indent: int = 6) -> Iterator[RenderableType]:
    """What is shown of the runs below a call of a step. Of the call's own run a line is there already."""
    for each in seen:
        if (each.step, each.call_id) == (step, call_id):
            yield from _below(each, indent)


def _below(seen: SubRunSeen, indent: int) -> Iterator[RenderableType]:
    for step in seen.steps or ():
        inner = partial(views, seen.below, step["step"])
        yield Padding(step_view(step, inner), (0, 0, 0, indent))
    if seen.steps is None:
        for each in seen.below:
            yield Padding(run_line(each.run), (0, 0, 0, indent))
            yield from _below(each, indent + 2)
