"""Which scripts of a worker run, and which are next."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.activities.code_mode.script_queue import OF_ONE_RUN, ScriptQueue


async def until_idle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Line:
    """Scripts of runs in one queue, in tasks. `begun`: the runs of those that have begun, in their order."""

    def __init__(self, most: int) -> None:
        self.queue = ScriptQueue(most)
        self.begun: list[str] = []
        self.running: Counter[str] = Counter()
        self.ends: list[asyncio.Event] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def _script(self, run: str, end: asyncio.Event) -> None:
        async with self.queue.place(run):
            self.begun.append(run)
            self.running[run] += 1
            try:
                await end.wait()
            finally:
                self.running[run] -= 1

    def add(self, run: str) -> None:
        self.ends.append(asyncio.Event())
        self.tasks.append(asyncio.create_task(self._script(run, self.ends[-1])))


async def test_a_run_with_many_scripts_delays_its_own_only() -> None:
    line = Line(3)
    for _ in range(100):
        line.add("many")
    await until_idle()
    assert line.begun == ["many"] * 2
    line.add("other")
    await until_idle()
    assert line.begun == ["many", "many", "other"]
    for run in ("third", "fourth"):
        line.add(run)
    for number in range(101):
        line.ends[number].set()
    await until_idle()
    assert line.begun.index("fourth") < 8
    for end in line.ends:
        end.set()
    await asyncio.gather(*line.tasks)
    assert len(line.begun) == 103


@settings(max_examples=300)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["begin", "end", "cancel"]), st.sampled_from("abc"), st.integers(0, 20))),
)
def test_any_order_of_beginnings_ends_and_cancellations(most: int, steps: list[tuple[str, str, int]]) -> None:
    async def check() -> None:
        line = Line(most)
        for what, run, number in steps:
            if what == "begin":
                line.add(run)
            elif line.tasks and what == "end":
                line.ends[number % len(line.ends)].set()
            elif line.tasks:
                line.tasks[number % len(line.tasks)].cancel()
            if number % 2:
                await until_idle()
            assert line.running.total() <= most
            assert all(count <= OF_ONE_RUN for count in line.running.values())
        for end in line.ends:
            end.set()
        results = await asyncio.gather(*line.tasks, return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
        async with asyncio.timeout(5), line.queue.place("a"):  # all places are free again
            assert line.running.total() == 0

    asyncio.run(check())
