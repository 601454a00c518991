"""Reads a run from outside: its queries, its steps as they come, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowQueryFailedError
from temporalio.exceptions import FailureError
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client.connect import explain_unreadable_data
from mulligan.client.query_answers import check_answer
from mulligan.client.start_run import run_before
from mulligan.client.unless_missing import unless_missing
from mulligan.errors import error_of
from mulligan.values import RunResult
from mulligan.wire.run_status import status_of_cause

SECONDS_BETWEEN_QUERIES = 0.5
"""Seconds between two queries for new steps. A worker of the run answers each query."""

NO_WORKER_STATUSES = {
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.FAILED_PRECONDITION,
    RPCStatusCode.CANCELLED,
}
"""The status of a failed query while no worker polls."""
QUERY_TIMEOUT = timedelta(seconds=10)
PROCESS_DIED = "The worker process died"
"""How the supervisor's refusal of a query begins that waited for a dead process. Another process answers it."""

PAGE_SIZE = 100
UNDECODABLE = (KeyError, ValueError, TypeError)
"""What the SDK raises for data that is not JSON, as a workflow of another program may have it."""

Handle = WorkflowHandle[Any, Any]
Query = Callable[..., Awaitable[Any]]
"""Queries a workflow run of the chain: (run id, query name, *arguments). The run id None means the newest one."""


class ForeignAnswerError(WorkflowQueryFailedError):
    """A workflow has answered a query in another form than a run does: it is another program's, or of another version."""


@dataclass(frozen=True)
class RunEnd:
    """How a run ended: its result, or the error that it failed with."""

    status: str
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    """{`kind`, `message`}, as of an `ErrorInfo`."""

    @property
    def completed(self) -> bool:
        """Whether the run completed. One that reached a limit, was refused, failed or was cancelled did not."""
        return self.status == "completed"


async def wait_for_end(handle: Handle) -> RunEnd:
    """Wait for the end of a run, including all workflow runs that it continues as new."""
    try:
        result = await handle.result()
    except WorkflowFailureError as failure:
        cause = failure.cause
        if (status := status_of_cause(cause)) == "cancelled":
            return RunEnd(status)
        typed = error_of(failure)
        if typed is not None:
            return RunEnd(status, error={"kind": typed.type, "message": typed.message})
        message = cause.message if isinstance(cause, FailureError) else str(cause)
        return RunEnd(status, error={"kind": type(cause).__name__, "message": message})
    except UNDECODABLE as error:
        if explain_unreadable_data(error):
            raise
        return RunEnd("completed", result={"status": "completed", "output": None})
    try:
        return RunEnd(RunResult.model_validate(result).status, result=result)
    except ValidationError:
        return RunEnd("completed", result={"status": "completed", "output": result})


async def query_run(handle: Handle, query: str, *args: Any) -> Any:
    """Return the result of a query.

    It is sent twice if it fails: a query can be lost if a worker evicts the run at that moment. This was seen in runs of
    the whole test suite, under load, with three queries at a time, and was not reproduced alone. Or the process that should
    have answered has died.

    Raises:
        RPCError: no worker answers.
        WorkflowQueryFailedError: the workflow has no such query, or refuses its arguments.
        ForeignAnswerError: its answer has another form than a run's.
    """
    try:
        return await ask_once(handle, query, *args)
    except (RPCError, WorkflowQueryFailedError) as error:
        if isinstance(error, WorkflowQueryFailedError) and not str(error).startswith(PROCESS_DIED):
            raise
        return await ask_once(handle, query, *args)


async def ask_once(handle: Handle, query: str, *args: Any, timeout: timedelta = QUERY_TIMEOUT) -> Any:
    """Return the result of a query that is sent once.

    Raises:
        RPCError: no worker answers.
        WorkflowQueryFailedError: the workflow has no such query, or refuses its arguments.
        ForeignAnswerError: its answer has another form than a run's.
    """
    try:
        answer = await handle.query(query, args=args, rpc_timeout=timeout)
        check_answer(query, answer)
    except UNDECODABLE as error:
        if explain_unreadable_data(error):
            raise
        raise ForeignAnswerError(f"The workflow answers the query {query!r} in another form than a run.") from None
    return answer


@dataclass(frozen=True)
class ChainSize:
    """The size of a run's history over all its workflow runs, but for those that the server has deleted."""

    runs: int
    events: int
    bytes: int


async def size_of_chain(client: Client, workflow_id: str) -> ChainSize:
    """The size of a run's whole history, as the server counts it."""
    run_id = (await client.get_workflow_handle(workflow_id).describe()).run_id
    runs = events = size = 0
    while run_id:
        description = await unless_missing(client.get_workflow_handle(workflow_id, run_id=run_id).describe())
        if description is None:
            break
        info = description.raw_description.workflow_execution_info
        runs, events, size = runs + 1, events + info.history_length, size + info.history_size_bytes
        run_id = await run_before(client, workflow_id, run_id)
    return ChainSize(runs, events, size)


@dataclass(frozen=True)
class ChainPage:
    """A page of a query, up to `end` at most. `run_id`: of the earlier workflow run that it is from; None: the newest.

    `answer`: None where the retention of that run is over.
    """

    run_id: str | None
    end: int | None
    answer: dict[str, Any] | None


async def chain_pages(
    query: Query,
    name: str,
    since: int,
    *,
    end: int | None = None,
    size: int = PAGE_SIZE,
    origin: Callable[[dict[str, str]], Query] | None = None,
) -> AsyncIterator[ChainPage]:
    """Yield the pages of the query `name` (`steps`, `messages` or `events`) from number `since` on, counted from 0.

    Entries before a compaction are read from earlier workflow runs of the chain; those of the run that it was forked from,
    by the query that `origin` returns for it.

    Raises:
        RPCError: no worker answers.
    """
    ranges: list[tuple[Query, str | None, int, int | None]] = [(query, None, since, end)]
    """The ranges of numbers to read, each with the run to query; the next one is last."""
    while ranges:
        query, run_id, start, end = ranges.pop()
        answering = query(run_id, name, start, size if end is None else min(size, end - start))
        page = await (unless_missing(answering) if run_id else answering)
        yield ChainPage(run_id, end, page)
        if page is None:
            continue
        following = page["next"]
        if following is not None and (end is None or following < end):
            ranges.append((query, run_id, following, end))
        if earlier := page.get("earlier"):
            until = following if end is None else min(following, end)
            of = origin(earlier) if origin and "id" in earlier else query
            ranges.append((of, earlier["run_id"], start, until))


async def read_pages(
    query: Query,
    name: str,
    since: int = 0,
    origin: Callable[[dict[str, str]], Query] | None = None,
    *,
    end: int | None = None,
) -> list[Any]:
    """All entries of the query `name` from number `since` on, up to `end`. Those of a run whose retention is over are left
    out.

    Raises:
        RPCError: no worker answers.
    """
    pages = [page.answer async for page in chain_pages(query, name, since, end=end, origin=origin)]
    return [entry for page in pages if page is not None for entry in page[name]]


def query_of_chain(client: Client, newest: Handle, *selected: Any) -> Query:
    """A query of the workflow runs of a chain. `selected`: its last arguments."""

    async def query(run_id: str | None, name: str, *args: Any) -> Any:
        handle = client.get_workflow_handle(newest.id, run_id=run_id) if run_id else newest
        return await query_run(handle, name, *args, *selected)

    return query


async def read_steps(
    client: Client, handle: Handle, since: int = 0, conversation: str | None = None, *, end: int | None = None
) -> list[dict[str, Any]]:
    """The steps of a run, as JSON values (`Step.model_validate` reads one). A worker has to answer the query.

    Args:
        client: A client of the run's namespace.
        handle: The run's handle: `client.get_workflow_handle(id)`.
        since: How many steps to skip.
        conversation: The number of the agent, in a workflow with several. None: the first.
        end: The number of the last step that is read. None: that of the run.

    Raises:
        RPCError: no worker answers, or there is no such run.
    """
    return await _read_all(client, handle, "steps", since, conversation, end)


async def read_messages(client: Client, handle: Handle, conversation: str | None = None) -> list[dict[str, Any]]:
    """The messages of a run, as JSON values. `conversation`: as for `read_steps`.

    Raises:
        RPCError: no worker answers, or there is no such run.
    """
    return await _read_all(client, handle, "messages", 0, conversation)


async def _read_all(
    client: Client, handle: Handle, name: str, since: int, conversation: str | None, end: int | None = None
) -> list[Any]:
    def of_origin(earlier: dict[str, str]) -> Query:
        return query_of_chain(client, client.get_workflow_handle(earlier["id"]), earlier["conversation"])

    selected = [] if conversation is None else [conversation]
    return await read_pages(query_of_chain(client, handle, *selected), name, since, of_origin, end=end)


async def follow_steps(client: Client, handle: Handle) -> AsyncIterator[dict[str, Any] | RunEnd]:
    """Yield each step when all its calls have a result, then how the run ended.

    While no worker answers, it waits; the steps come when a worker is back.
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
