"""Following a run from outside: its steps as they come, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import CancelledError, FailureError
from temporalio.service import RPCError, RPCStatusCode

from mulligan.errors import error_of

__all__ = ["NO_WORKER_STATUSES", "RunEnd", "follow_steps", "query_run", "read_pages", "read_steps", "wait_for_end"]

SECONDS_BETWEEN_QUERIES = 0.5
"""Seconds between two looks at a run: each is a query that its worker answers."""

NO_WORKER_STATUSES = {
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.FAILED_PRECONDITION,
    RPCStatusCode.CANCELLED,
}
"""What a query answers while no worker polls."""
QUERY_TIMEOUT = timedelta(seconds=10)

PAGE_SIZE = 100

Handle = WorkflowHandle[Any, Any]
Query = Callable[..., Awaitable[Any]]
"""Asks a query of a run of the chain, of the newest where its run id is None: (run id, query, *arguments)."""


@dataclass(frozen=True)
class RunEnd:
    """How a run ended: its result, or the error that it failed with."""

    status: str
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    @property
    def completed(self) -> bool:
        """Whether it came to its end; a run out of steps, refused, failed or cancelled did not."""
        return self.status == "completed"


async def wait_for_end(handle: Handle) -> RunEnd:
    """Wait for the end of a run (and of all runs that it continued as)."""
    try:
        result = await handle.result()
    except WorkflowFailureError as failure:
        cause = failure.cause
        if isinstance(cause, CancelledError):
            return RunEnd("cancelled")
        typed = error_of(failure)
        if typed is not None:
            return RunEnd("failed", error={"type": typed.type, "message": typed.message})
        message = cause.message if isinstance(cause, FailureError) else str(cause)
        return RunEnd("failed", error={"type": type(cause).__name__, "message": message})
    if not isinstance(result, dict) or "status" not in result:
        return RunEnd("completed", result={"status": "completed", "output": result})
    return RunEnd(result["status"], result=result)


async def query_run(handle: Handle, query: str, *args: Any) -> Any:
    """A query's answer.

    Asked twice: a question that comes just as a worker evicts the run can be lost with it. Seen now and then in runs of
    the whole suite, under load, with three questions at a time; not reproduced alone.

    Raises:
        RPCError: no worker answers.
    """
    try:
        return await handle.query(query, args=args, rpc_timeout=QUERY_TIMEOUT)
    except RPCError:
        return await handle.query(query, args=args, rpc_timeout=QUERY_TIMEOUT)


async def read_pages(query: Query, name: str, since: int = 0) -> list[Any]:
    """The `steps` or `messages` (`name`) from number `since` (counted from 0) on: of those before a compaction, too.

    These are asked of the runs of the chain that hold them. What is past its retention is left out.

    Raises:
        RPCError: no worker answers.
    """
    found: list[Any] = []
    wanted: list[tuple[str | None, int, int | None]] = [(None, since, None)]
    """Stretches of numbers, and the run to ask for each; the next one last."""
    while wanted:
        run_id, start, end = wanted.pop()
        try:
            page = await query(run_id, name, start, PAGE_SIZE if end is None else min(PAGE_SIZE, end - start))
        except RPCError as error:
            if run_id is None or error.status != RPCStatusCode.NOT_FOUND:
                raise
            continue
        found += page[name]
        following = page["next"]
        if following is not None and (end is None or following < end):
            wanted.append((run_id, following, end))
        if earlier := page.get("earlier"):
            wanted.append((earlier["run_id"], start, following if end is None else min(following, end)))
    return found


async def read_steps(client: Client, handle: Handle, since: int = 0) -> list[dict[str, Any]]:
    """The steps of a run from number `since` (counted from 0) on.

    Raises:
        RPCError: no worker answers.
    """

    async def of_chain(run_id: str | None, name: str, *args: Any) -> Any:
        return await query_run(client.get_workflow_handle(handle.id, run_id=run_id) if run_id else handle, name, *args)

    return await read_pages(of_chain, "steps", since)


async def follow_steps(client: Client, handle: Handle) -> AsyncIterator[dict[str, Any] | RunEnd]:
    """Each step once all its calls are settled, then how the run ended.

    A run whose worker is away is waited for; its steps come when it is back.
    """
    end = asyncio.create_task(wait_for_end(handle))
    seen = 0
    try:
        while True:
            over = end.done()
            try:
                for step in await read_steps(client, handle, seen):
                    if not over and any(call["result"] is None for call in step["tool_calls"]):
                        break
                    seen = step["step"]
                    yield step
            except RPCError as error:
                if over or error.status not in NO_WORKER_STATUSES:
                    raise
            if over:
                yield end.result()
                return
            await asyncio.wait([end], timeout=SECONDS_BETWEEN_QUERIES)
    finally:
        end.cancel()
