"""Queries of the workflow that an activity belongs to: sent again if the worker process that has them may have died."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TypeVar

from temporalio import activity
from temporalio.client import WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

T = TypeVar("T")

QUERY_TIMEOUT = timedelta(seconds=10)
"""A query waits for a workflow worker, and there may be none at the moment: then Temporal retries the activity."""
QUERY_ATTEMPTS = 3
SECONDS_TO_SECOND_QUERIES = (1.0, 3.0)
"""Until a query without an answer is sent a second and a third time. That of a long run may take a second."""
MOST_QUERIES = 8
"""How often one query is sent, if worker processes die one after the other."""

_open: set[asyncio.Event] = set()
"""One for each query that has no answer; set if it is to be sent again."""


def send_open_queries_again() -> None:
    """Another process of the same supervisor has died: it may have had any query that waits. Call it on the event loop."""
    for again in _open:
        again.set()


async def query_this_workflow(name: str, argument: object, result_type: type[T]) -> T:
    """The answer of the workflow that the current activity belongs to.

    A worker process that dies answers none of the queries that it has. So a query without an answer is sent again, beside
    the first one, and the first answer counts.

    Raises:
        RPCError: no worker answers, or the server cancelled the query `QUERY_ATTEMPTS` times.
        WorkflowQueryFailedError: the query failed `QUERY_ATTEMPTS` times.
    """
    handle, queries, again = this_workflow(), set[asyncio.Task[T]](), asyncio.Event()
    waits = list(SECONDS_TO_SECOND_QUERIES)
    _open.add(again)
    try:
        while True:
            queries.add(asyncio.create_task(_query(handle, name, argument, result_type)))
            if answered := await _first_answer(queries, again, waits):
                return answered.result()
            again.clear()
    finally:
        _open.discard(again)
        for task in queries:
            task.cancel()
        await asyncio.gather(*queries, return_exceptions=True)


async def _first_answer(
    queries: set[asyncio.Task[T]], again: asyncio.Event, waits: list[float]
) -> asyncio.Task[T] | None:
    """The query that has been answered, or has failed, first; None if it is to be sent again."""
    if len(queries) == MOST_QUERIES:
        answered, _ = await asyncio.wait(queries, return_when=asyncio.FIRST_COMPLETED)
        return answered.pop()
    told = asyncio.create_task(again.wait())
    try:
        done, _ = await asyncio.wait(
            {*queries, told}, timeout=waits[0] if waits else None, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        told.cancel()
    if not done:
        waits.pop(0)
    return next((task for task in queries if task in done), None)


async def _query(handle: WorkflowHandle[object, object], name: str, argument: object, result_type: type[T]) -> T:
    """Query. A query that failed because a worker process died is sent again at once: the supervisor has refused it, or the
    server has cancelled it, as it was just sending it to that process.
    """

    async def query() -> T:
        answer: T = await handle.query(name, argument, result_type=result_type, rpc_timeout=QUERY_TIMEOUT)
        return answer

    now = asyncio.get_running_loop().time
    for _ in range(QUERY_ATTEMPTS - 1):
        began = now()
        try:
            return await query()
        except WorkflowQueryFailedError:
            continue
        except RPCError as error:
            # The SDK gives the end of the timeout the same status.
            if error.status != RPCStatusCode.CANCELLED or now() - began >= 0.9 * QUERY_TIMEOUT.total_seconds():
                raise
    return await query()


def this_workflow() -> WorkflowHandle[object, object]:
    """A handle for queries of the workflow that the current activity belongs to."""
    info = activity.info()
    assert info.workflow_id is not None
    return activity.client().get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)
