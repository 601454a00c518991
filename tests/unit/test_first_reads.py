"""Feeds read their runs for the first time a few at once, and runs that no worker answers for keep others back briefly."""

from __future__ import annotations

import asyncio

import pytest

from mulligan.client import first_reads
from mulligan.client.first_reads import AT_ONCE, FirstReads


class Feeds:
    """Feeds that have read their run when the test says so."""

    def __init__(self, reads: FirstReads) -> None:
        self.reads = reads
        self.begun: list[int] = []
        self.answered = asyncio.Event()

    async def read(self, number: int) -> None:
        end = await self.reads.begin()
        self.begun.append(number)
        try:
            await self.answered.wait()
        finally:
            end()
            end()  # the reader of a run ends its place at its first query, and again when it stops

    def begin(self, count: int) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self.read(number)) for number in range(count)]


async def settle() -> None:
    """Let the tasks run until nothing is left to do now."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_burst_of_feeds_reads_a_few_runs_at_once_in_order() -> None:
    feeds = Feeds(FirstReads())
    tasks = feeds.begin(3 * AT_ONCE)
    await settle()
    assert feeds.begun == list(range(AT_ONCE))
    feeds.answered.set()
    await asyncio.gather(*tasks)
    assert feeds.begun == list(range(3 * AT_ONCE))


async def test_runs_that_nobody_answers_for_give_their_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_reads, "LONGEST_HOLD", 0.01)
    reads = FirstReads()
    stuck = Feeds(reads)
    tasks = stuck.begin(3 * AT_ONCE)
    while len(stuck.begun) < 3 * AT_ONCE:
        await asyncio.sleep(0.01)
    stuck.answered.set()
    await asyncio.gather(*tasks)
    after = Feeds(reads)
    tasks = after.begin(2 * AT_ONCE)
    await settle()
    assert len(after.begun) == AT_ONCE  # a place that was given back by time was not given back again
    after.answered.set()
    await asyncio.gather(*tasks)


async def test_a_feed_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_reads, "LONGEST_WAIT", 0.01)
    reads = FirstReads()
    stuck, late = Feeds(reads), Feeds(reads)
    tasks = stuck.begin(AT_ONCE)
    await settle()
    late.answered.set()
    await late.read(0)
    stuck.answered.set()
    await asyncio.gather(*tasks)
    assert (len(stuck.begun), late.begun) == (AT_ONCE, [0])


@pytest.mark.parametrize("began", [True, False], ids=["reading", "waiting"])
async def test_a_feed_that_is_closed_leaves_as_many_places_as_before(began: bool) -> None:
    reads = FirstReads()
    feeds = Feeds(reads)
    tasks = feeds.begin(2 * AT_ONCE)
    await settle()
    closed, others = (tasks[:AT_ONCE], tasks[AT_ONCE:]) if began else (tasks[AT_ONCE:], tasks[:AT_ONCE])
    for task in closed:
        task.cancel()
    await asyncio.gather(*closed, return_exceptions=True)
    feeds.answered.set()
    await asyncio.gather(*others)
    after = Feeds(reads)
    tasks = after.begin(2 * AT_ONCE)
    await settle()
    assert len(after.begun) == AT_ONCE
    after.answered.set()
    await asyncio.gather(*tasks)
