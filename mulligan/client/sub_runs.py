"""The open runs of sub-agents below a run, and their calls that wait for a person.

A workflow cannot query its children, but a client can: it finds them by Temporal's descriptions, which have the children
that are open at that moment, level by level.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowQueryFailedError
from temporalio.service import RPCError

from mulligan.client.read_run import query_run
from mulligan.wire.run_context import AGENT_WORKFLOW

MOST_RUNS, MOST_LEVELS = 100, 10
"""How many sub-runs are looked at, and how many levels below the run. `max_depth` of agents is 5 by default."""
PARALLEL_REQUESTS = 20
SECONDS = 15.0
"""For all sub-runs together. Workers may have to replay them first."""
REQUEST_TIMEOUT = timedelta(seconds=5)


@dataclass(frozen=True)
class PendingCalls:
    """The calls of a run and of its open sub-runs that wait for a person, the oldest first.

    `calls`: as the query `pending` returns them, each with the `id` of its run. `unread`: the ids of the sub-runs that
    could not be read. `is_complete`: whether all levels were looked at, and no more runs than `MOST_RUNS`.
    """

    calls: list[dict[str, Any]]
    unread: list[str]
    is_complete: bool


def open_children(run: WorkflowExecutionDescription) -> list[str]:
    """The ids of the runs of sub-agents that a run waits for."""
    children = run.raw_description.pending_children
    return [child.workflow_id for child in children if child.workflow_type_name == AGENT_WORKFLOW]


async def read_pending(client: Client, run_id: str) -> PendingCalls:
    """The calls of a run, and of the open sub-runs at any level below it, that wait for a person.

    Raises:
        RPCError: no worker answers for the run itself, or it does not exist.
        WorkflowQueryFailedError: it does not answer the query `pending`.
    """
    calls = await _pending_of(client, run_id)
    reading = _SubRunReading(client)
    try:
        async with asyncio.timeout(SECONDS):
            await reading.read_below(run_id)
    except TimeoutError:
        reading.unread += [each for each in reading.found if each not in reading.done]
    calls = sorted([*calls, *reading.calls], key=lambda call: str(call["since"]))
    return PendingCalls(calls, list(dict.fromkeys(reading.unread)), reading.is_complete)


async def _pending_of(client: Client, run_id: str) -> list[dict[str, Any]]:
    calls = await query_run(client.get_workflow_handle(run_id), "pending")
    return [{"id": run_id, **call} for call in calls]


class _SubRunReading:
    """Reads the runs below a run, once. After a cancellation, the runs that it has read so far are valid."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._limit = asyncio.Semaphore(PARALLEL_REQUESTS)
        self.found: list[str] = []
        self.done: set[str] = set()
        self.calls: list[dict[str, Any]] = []
        self.unread: list[str] = []
        self.is_complete = True

    async def read_below(self, run_id: str) -> None:
        """Read all levels below the run."""
        parents: Sequence[str] = [run_id]
        for _ in range(MOST_LEVELS):
            levels = await asyncio.gather(*(self._children(parent) for parent in parents))
            parents = [child for children in levels for child in children]
            if len(self.found) + len(parents) > MOST_RUNS:
                self.is_complete = False
                parents = parents[: MOST_RUNS - len(self.found)]
            if not parents:
                return
            self.found += parents
            await asyncio.gather(*(self._read(each) for each in parents))
        self.is_complete = False

    async def _children(self, run_id: str) -> list[str]:
        try:
            async with self._limit:
                handle = self._client.get_workflow_handle(run_id)
                return open_children(await handle.describe(rpc_timeout=REQUEST_TIMEOUT))
        except RPCError:
            self.unread.append(run_id)
            return []

    async def _read(self, run_id: str) -> None:
        try:
            async with self._limit:
                self.calls += await _pending_of(self._client, run_id)
        except (RPCError, WorkflowQueryFailedError):
            self.unread.append(run_id)
        self.done.add(run_id)
