"""How often a query of the workflow is sent."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from mulligan.activities.run_data import query_workflow


async def test_a_query_is_sent_a_bounded_number_of_times_however_many_processes_die(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent, answered = 0, asyncio.Event()

    async def query(*_: Any) -> str:
        nonlocal sent
        sent += 1
        await answered.wait()
        return "answer"

    monkeypatch.setattr(query_workflow, "_query", query)
    monkeypatch.setattr(query_workflow, "this_workflow", lambda: None)
    asking = asyncio.create_task(query_workflow.query_this_workflow("any", None, str))
    for _ in range(10 * query_workflow.MOST_QUERIES):
        await asyncio.sleep(0)
        query_workflow.send_open_queries_again()
    assert sent == query_workflow.MOST_QUERIES
    answered.set()
    assert await asking == "answer"
    assert sent == query_workflow.MOST_QUERIES  # the answer of one of them counts


class Handle:
    """A workflow whose queries end as they are listed: with an answer, or an error."""

    def __init__(self, *ends: str | Exception) -> None:
        self.ends = list(ends)

    async def query(self, *_: Any, **__: Any) -> str:
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


CANCELLED = RPCError("context canceled", RPCStatusCode.CANCELLED, b"")
REFUSED = WorkflowQueryFailedError("The worker process died (killed by SIGKILL).")
NO_SERVER = RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")


async def test_what_a_dead_process_leaves_unanswered_is_sent_again_at_once() -> None:
    """Until it was, each such query failed the model call that had sent it, which then waited for its next attempt."""
    for ends in itertools.product((CANCELLED, REFUSED), repeat=query_workflow.QUERY_ATTEMPTS - 1):
        handle: Any = Handle(*ends, "answer")
        assert await query_workflow._query(handle, "any", None, str) == "answer"
    handle = Handle(*[CANCELLED] * query_workflow.QUERY_ATTEMPTS, "too late")
    with pytest.raises(RPCError, match="context canceled"):
        await query_workflow._query(handle, "any", None, str)


async def test_a_query_that_nobody_can_answer_fails_after_one_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    handle: Any = Handle(NO_SERVER, "unused")
    with pytest.raises(RPCError, match="connection refused"):
        await query_workflow._query(handle, "any", None, str)
    monkeypatch.setattr(query_workflow, "QUERY_TIMEOUT", timedelta(0))
    with pytest.raises(RPCError, match="context canceled"):
        await query_workflow._query(Handle(CANCELLED, "unused"), "any", None, str)  # type: ignore[arg-type]
