"""The calls of the runs below a run that wait for a person: which runs are looked at, and which could not be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.api.workflow.v1 import PendingChildExecutionInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client import sub_runs
from mulligan.client.sub_runs import read_pending
from mulligan.wire.updates import Pending

GONE = RPCError("workflow not found", RPCStatusCode.NOT_FOUND, b"")


@dataclass
class Run:
    """A run: its open children, by the ids and the types of workflows, and whether a server knows and a worker has it."""

    children: Mapping[str, str]
    is_known: bool = True
    is_served: bool = True

    async def describe(self, **_: Any) -> Any:
        if not self.is_known:
            raise GONE
        children = [
            PendingChildExecutionInfo(workflow_id=name, workflow_type_name=kind) for name, kind in self.children.items()
        ]
        return SimpleNamespace(raw_description=DescribeWorkflowExecutionResponse(pending_children=children))

    async def query(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        if not self.is_served:
            raise GONE
        since = "2026-11-25T12:00:00.000Z"
        waiting = Pending(
            call_id="c", tool="pay", arguments={}, kind="approval", since=since, text="pay {}", agent="a", step=1
        )
        return [waiting.model_dump(mode="json")]


def server(**runs: Run) -> Client:
    return cast(Client, SimpleNamespace(get_workflow_handle=runs.__getitem__))


AGENT = "AgentWorkflow"


async def test_all_agents_below_a_run_are_read_and_no_other_workflows() -> None:
    a = Run({"b": AGENT, "other": "OrderWorkflow"})
    found = await read_pending(server(top=Run({"a": AGENT}), a=a, b=Run({})), "top")
    assert [call["id"] for call in found.calls] == ["top", "a", "b"]
    assert (found.unread, found.is_complete) == ([], True)


@pytest.mark.parametrize(
    ("lost", "calls"),
    [
        (Run({"c": AGENT}, is_known=False), ["top", "a", "b"]),
        (Run({"c": AGENT}, is_served=False), ["top", "b", "c"]),
        (Run({"c": AGENT}, is_known=False, is_served=False), ["top", "b"]),
    ],
    ids=["not described", "no worker", "neither"],
)
async def test_a_run_that_cannot_be_read_is_named_once_and_the_others_are_read(lost: Run, calls: list[str]) -> None:
    runs = server(top=Run({"a": AGENT, "b": AGENT}), a=lost, b=Run({}), c=Run({}))
    found = await read_pending(runs, "top")
    assert ([call["id"] for call in found.calls], found.unread) == (calls, ["a"])
    assert found.is_complete


async def test_a_reading_ends_at_the_most_runs_and_the_most_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sub_runs, "MOST_RUNS", 2)
    wide = await read_pending(server(top=Run(dict.fromkeys("abc", AGENT)), a=Run({}), b=Run({})), "top")
    assert ([call["id"] for call in wide.calls], wide.is_complete) == (["top", "a", "b"], False)
    monkeypatch.setattr(sub_runs, "MOST_LEVELS", 1)
    deep = await read_pending(server(top=Run({"a": AGENT}), a=Run({"b": AGENT})), "top")
    assert ([call["id"] for call in deep.calls], deep.is_complete) == (["top", "a"], False)
