"""Random calls of several runs on a runtime with few threads: no run and no function takes the threads of others."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from temporalio.testing import ActivityEnvironment

from mulligan.activities.tool_running import tool_runtime
from mulligan.activities.tool_running.thread_bounds import TooManyThreads
from mulligan.activities.tool_running.tool_runtime import ToolRuntime

THREADS, OF_RUN, OF_FUNCTION = 8, 2, 4
BRIEF, AMPLE = 0.01, 60.0
"""Limits in seconds, of calls that get no thread and of all others."""
Kind = Literal["hung", "blocker", "quick", "quick async", "guard", "fixer", "end"]
Call = tuple[Kind, str, int]
"""What is called, by which run, and which of two functions; `end` lets one of the hung calls end."""
CALLS = st.tuples(
    st.sampled_from(["hung", "hung", "blocker", "blocker", "quick", "quick async", "guard", "fixer", "end"]),
    st.sampled_from("abcd"),
    st.integers(0, 1),
)


class Until(threading.Event):
    """Set when the functions that wait for it end. `is_awaited`: whether one waits."""

    is_awaited = False

    def wait(self, timeout: float | None = None) -> bool:
        self.is_awaited = True
        return super().wait(timeout)


def tool(_number: int) -> Callable[[Until | None], str]:
    def hang_or_answer(until: Until | None = None) -> str:
        if until is not None:
            until.wait()
        return "answer"

    return hang_or_answer


def async_tool(_number: int) -> Callable[[Until | None], Awaitable[str]]:
    async def hang_or_answer(until: Until | None = None) -> str:
        async def in_a_task_of_its_own() -> None:
            if until is not None:
                until.wait()

        await asyncio.gather(in_a_task_of_its_own())
        return "answer"

    return hang_or_answer


TOOLS, ASYNC_TOOLS = [tool(0), tool(1)], [async_tool(0), async_tool(1)]


def guard(_call: object) -> str:
    return "answer"


async def fixer(_call: object) -> str:
    return "answer"


async def within_run(run: str, call: Callable[[], Awaitable[Any]]) -> Any:
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, workflow_id=run)

    async def within() -> Any:
        return await call()

    return await environment.run(within)


class Worker:
    """A worker that takes calls while it is ready, beside a model of the threads that hang on it."""

    def __init__(self) -> None:
        self.runtime, self.is_ready = ToolRuntime(threads=THREADS), True
        self.runtime.bounds.on_used_up = self._stop_polling
        self.hung: list[tuple[Call, Until]] = []

    def _stop_polling(self, _reason: str) -> None:
        self.is_ready = False

    async def call(self, call: Call, limit: float, until: Until | None = None) -> Any:
        kind, run, number = call
        ask, run_function = self.runtime.ask, self.runtime.run
        match kind:
            case "hung" | "quick":
                return await within_run(run, lambda: run_function(TOOLS[number], [until], limit=limit))
            case "blocker" | "quick async":
                return await within_run(run, lambda: run_function(ASYNC_TOOLS[number], [until], limit=limit))
            case "guard":
                return await within_run(run, lambda: ask(guard, [None], limit=limit))
            case "fixer":
                return await within_run(run, lambda: ask(fixer, [None], limit=limit))

    def has_room(self, call: Call) -> bool:
        """Whether the bounds let the call run, by the model."""
        kind, run, number = call
        alike = [each for each, _ in self.hung if (each[0] == "hung") == (kind in ("hung", "quick", "guard"))]
        of_runs, of_functions = Counter(each[1] for each in alike), Counter(each[2] for each in alike)
        of_function = 0 if kind in ("guard", "fixer") else of_functions[number]
        return of_runs[run] < OF_RUN and of_function < OF_FUNCTION

    async def hang(self, call: Call) -> None:
        """Make a call, and give it up when it hangs, as at its limit: the test decides when that is."""
        until = Until()
        calling = asyncio.create_task(self.call(call, AMPLE, until))
        while not until.is_awaited:
            await asyncio.sleep(0.001)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        self.hung.append((call, until))

    async def refuse(self, call: Call) -> None:
        """Make a call that gets no thread."""
        with pytest.raises(TooManyThreads):
            await self.call(call, BRIEF)

    async def end(self, number: int) -> None:
        """Let a hung call end, and wait until the runtime has noticed."""
        if self.hung:
            _, until = self.hung.pop(number % len(self.hung))
            until.set()
            while self.runtime.bounds.hung != len(self.hung):
                await asyncio.sleep(0.001)

    def close(self) -> None:
        for _, until in self.hung:
            until.set()
        self.runtime.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(CALLS, max_size=40))
@example([(kind, run, number) for run in "abcd" for kind in ("hung", "blocker") for number in (0, 1)])
def test_quick_calls_are_answered_while_the_worker_is_ready(calls: list[Call]) -> None:
    """A call is refused only where its own run, or its own function, has used its share. No share is all threads.

    The worker is ready until as many threads hang as it bears. After that it takes no call.
    """

    async def serve() -> None:
        worker = Worker()
        try:
            for call in calls:
                if not worker.is_ready:
                    assert len({each[1] for each, _ in worker.hung}) > 1
                    assert len({(each[0], each[2]) for each, _ in worker.hung}) > 1
                    break
                match call[0]:
                    case "end":
                        await worker.end(call[2])
                    case _ if not worker.has_room(call):
                        await worker.refuse(call)
                    case "hung" | "blocker":
                        await worker.hang(call)
                    case _:
                        assert await worker.call(call, AMPLE) == "answer"
                assert worker.runtime.bounds.hung == len(worker.hung)
                assert worker.is_ready == (len(worker.hung) < THREADS)
        finally:
            worker.close()

    with pytest.MonkeyPatch.context() as patch:
        # Here a loop is seen to be blocked at the limit of the call that blocks it.
        patch.setattr(tool_runtime, "START_WITHIN", AMPLE)
        asyncio.run(serve())


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["hung", "blocker"]), st.just("a"), st.integers(0, 1)), max_size=12),
)
def test_other_runs_are_answered_while_all_calls_of_one_run_hang_at_once(calls: list[Call]) -> None:
    """The calls hang within their limits, so nothing has been counted before the others come."""

    async def serve() -> None:
        worker, over = Worker(), Until()
        hanging = [asyncio.create_task(worker.call(call, AMPLE, over)) for call in calls]
        try:
            # What runs on a loop at the moment when another function blocks it has to wait for that one.
            while calls and not over.is_awaited:
                await asyncio.sleep(0.001)
            others: list[Call] = [(k, "b", 0) for k in ("quick", "quick async", "guard", "fixer")]
            assert await asyncio.gather(*(worker.call(call, AMPLE) for call in others)) == ["answer"] * 4
            assert worker.is_ready
        finally:
            over.set()
            assert await asyncio.gather(*hanging) == ["answer"] * len(calls)
            worker.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool_runtime, "START_WITHIN", 0.2)
        asyncio.run(serve())


async def test_a_function_that_hangs_in_many_runs_at_once_counts_for_its_share_only() -> None:
    """All its calls were within their limits when they began. The worker is ready, and serves other functions."""
    worker = Worker()
    hanging: list[tuple[Call, Until]] = [(("hung", f"run-{number}", 0), Until()) for number in range(3 * THREADS)]
    calling = [asyncio.create_task(worker.call(call, AMPLE, until)) for call, until in hanging]
    while not all(until.is_awaited for _, until in hanging):
        await asyncio.sleep(0.001)
    for each in calling:
        each.cancel()
    assert all(
        isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*calling, return_exceptions=True)
    )
    worker.hung = hanging
    try:
        assert worker.runtime.bounds.hung == 3 * THREADS
        assert worker.is_ready
        await worker.refuse(("quick", "other", 0))
        assert await worker.call(("quick", "other", 1), AMPLE) == "answer"
    finally:
        worker.close()
