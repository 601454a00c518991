"""How often a query of the workflow is sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

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
