"""The calls of all open runs that wait for a person."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client, WorkflowExecution, WorkflowQueryFailedError
from temporalio.service import RPCError

from mulligan.client.find_runs import readable_memo
from mulligan.client.read_run import UNDECODABLE, query_run
from mulligan.wire.run_status import PENDING_MEMO

MOST_OPEN_RUNS, MOST_WAITING_RUNS = 10_000, 300
"""Open runs whose memo is read, and runs that are asked for their calls."""
PARALLEL_QUERIES = 20
SECONDS_FOR_RUN = 6.0


@dataclass
class AllPending:
    """The calls, the longest waiting first: as the query `pending` returns them, with the `id` of their run.

    `encrypted`: how many open runs have a memo that cannot be decrypted, so that they may wait, too. `unread`: why runs
    that wait did not answer, by their ids. `is_complete`: whether all open runs were looked at.
    """

    calls: list[dict[str, Any]] = field(default_factory=list)
    encrypted: int = 0
    unread: dict[str, str] = field(default_factory=dict)
    is_complete: bool = True


async def read_all_pending(
    client: Client,
    may_see: Callable[[WorkflowExecution], Awaitable[bool]] | None = None,
    *,
    is_bounded: bool = True,
) -> AllPending:
    """Read them. Only runs whose memo says that calls wait are queried. `may_see` decides on each of these.

    Unless it `is_bounded`, all open runs are read, however long that takes.

    Raises:
        RPCError: Temporal does not answer.
    """
    pending, run_ids, seen = AllPending(), list[str](), 0
    async for execution in client.list_workflows('ExecutionStatus = "Running"'):
        seen += 1
        if is_bounded and (seen > MOST_OPEN_RUNS or len(run_ids) >= MOST_WAITING_RUNS):
            pending.is_complete = False
            break
        memo = await readable_memo(execution)
        if memo is None:
            pending.encrypted += 1
        elif memo.get(PENDING_MEMO) and (may_see is None or await may_see(execution)):
            run_ids.append(execution.id)
    limit = asyncio.Semaphore(PARALLEL_QUERIES)
    seconds = SECONDS_FOR_RUN if is_bounded else None
    await asyncio.gather(*(_read(client, run_id, limit, seconds, pending) for run_id in run_ids))
    pending.calls.sort(key=lambda call: str(call["since"]))
    return pending


async def _read(
    client: Client, run_id: str, limit: asyncio.Semaphore, seconds: float | None, pending: AllPending
) -> None:
    try:
        async with limit, asyncio.timeout(seconds):
            calls = await query_run(client.get_workflow_handle(run_id), "pending")
    except (RPCError, WorkflowQueryFailedError, TimeoutError, *UNDECODABLE) as error:
        pending.unread[run_id] = str(error)
        return
    pending.calls += [{"id": run_id, **call} for call in calls]
