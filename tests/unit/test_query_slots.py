"""Queries of one process begin a few at a time, and those that nobody answers keep back no others."""

import asyncio
from contextlib import suppress

import pytest
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client import query_slots
from mulligan.client.query_slots import SLOTS, query_slot


class Queries:
    """Queries that are answered when the test says so."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.answers = asyncio.Event()

    async def ask(self, workflow_id: str, *, fails: bool = False) -> None:
        """One query. `fails`: nobody answers it."""
        async with query_slot(workflow_id):
            self.begun.append(workflow_id)
            await self.answers.wait()
            if fails:
                raise RPCError("Timeout expired", RPCStatusCode.CANCELLED, b"")


async def settle() -> None:
    """Let the tasks run until nothing is left to do now."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def no_runs_without_answer() -> None:
    query_slots._unanswered.clear()


async def test_a_burst_of_queries_begins_a_few_at_a_time_in_order() -> None:
    queries = Queries()
    tasks = [asyncio.create_task(queries.ask(f"run-{number}")) for number in range(3 * SLOTS)]
    await settle()
    assert queries.begun == [f"run-{number}" for number in range(SLOTS)]
    queries.answers.set()
    await asyncio.gather(*tasks)
    assert queries.begun == [f"run-{number}" for number in range(3 * SLOTS)]


async def test_queries_that_nobody_answers_give_their_slots_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_slots, "LONGEST_HOLD", 0.01)
    queries = Queries()
    tasks = [asyncio.create_task(queries.ask(f"run-{number}")) for number in range(3 * SLOTS)]
    while len(queries.begun) < 3 * SLOTS:
        await asyncio.sleep(0.01)
    queries.answers.set()
    await asyncio.gather(*tasks)
    late = Queries()
    late.answers.set()
    for _ in range(2 * SLOTS):  # no slot was given back twice, or not at all
        await late.ask("late")
    assert len(late.begun) == 2 * SLOTS


async def test_a_run_without_answer_takes_no_slot_until_it_answers() -> None:
    failed, stuck, answered = Queries(), Queries(), Queries()
    failed.answers.set()
    for number in range(SLOTS):
        with suppress(RPCError):
            await failed.ask(f"run-{number}", fails=True)
    tasks = [asyncio.create_task(stuck.ask(f"run-{number}")) for number in range(SLOTS)]
    others = [asyncio.create_task(answered.ask("other")) for _ in range(SLOTS)]
    await settle()
    assert len(stuck.begun) == len(answered.begun) == SLOTS
    stuck.answers.set()
    await asyncio.gather(*tasks)
    assert query_slots._unanswered == {}
    answered.answers.set()
    await asyncio.gather(*others)


async def test_a_query_that_is_cancelled_while_it_waits_gives_back_nothing() -> None:
    queries = Queries()
    tasks = [asyncio.create_task(queries.ask(f"run-{number}")) for number in range(2 * SLOTS)]
    await settle()
    for task in tasks[SLOTS:]:
        task.cancel()
    await asyncio.gather(*tasks[SLOTS:], return_exceptions=True)
    late = asyncio.create_task(queries.ask("late"))
    await settle()
    assert "late" not in queries.begun
    queries.answers.set()
    await asyncio.gather(*tasks[:SLOTS], late)
    assert queries.begun[-1] == "late"


async def test_the_memory_of_runs_without_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_slots, "MOST_UNANSWERED", 3)
    queries = Queries()
    queries.answers.set()
    for number in range(5):
        with suppress(RPCError):
            await queries.ask(f"run-{number}", fails=True)
    assert list(query_slots._unanswered) == ["run-2", "run-3", "run-4"]
