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
from mulligan.activities.tool_running.thread_bounds import TookTooLong, TooManyThreads
from mulligan.activities.tool_running.tool_runtime import ToolRuntime
from tests.support.examples import examples

THREADS, OF_RUN, OF_FUNCTION = 8, 2, 4
BRIEF, AMPLE = 0.05, 60.0
"""Limits in seconds, of calls that hang or get no thread and of all others."""
Kind = Literal["hung", "blocker", "quick", "quick async", "guard", "fixer", "end", "slow", "finish", "cancel"]
Call = tuple[Kind, str, int]
"""What is called, by which run, and which of two functions; `end` lets one of the hung calls end.

`slow` starts a healthy call that is at work until `finish` or `cancel`."""
CALLS = st.tuples(
    st.sampled_from(
        [*("hung", "blocker", "slow") * 2, "quick", "quick async", "guard", "fixer", "end", "finish", "cancel"]
    ),
    st.sampled_from("abcd"),
    st.integers(0, 1),
)


class Until(threading.Event):
    """Set when the functions that wait for it end."""

    waits_in_thread = False
    blocks_loop = False

    @property
    def is_awaited(self) -> bool:
        """Whether a function waits for it."""
        return self.waits_in_thread or self.blocks_loop


def tool(_number: int) -> Callable[[Until | None], str]:
    def hang_or_answer(until: Until | None = None) -> str:
        if until is not None:
            until.waits_in_thread = True
            until.wait()
        return "answer"

    return hang_or_answer


def async_tool(_number: int) -> Callable[[Until | None], Awaitable[str]]:
    async def hang_or_answer(until: Until | None = None) -> str:
        async def in_a_task_of_its_own() -> None:
            if until is not None:
                until.blocks_loop = True
                until.wait()

        await asyncio.gather(in_a_task_of_its_own())
        return "answer"

    return hang_or_answer


TOOLS, ASYNC_TOOLS = [tool(0), tool(1)], [async_tool(0), async_tool(1)]


def guard(_call: object) -> str:
    return "answer"


async def fixer(_call: object) -> str:
    return "answer"


async def within_run(run: str, call: Callable[[], Awaitable[Any]], *, is_stopping: bool = False) -> Any:
    environment = ActivityEnvironment()
    if is_stopping:
        environment.worker_shutdown()
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
        self.slow: list[tuple[asyncio.Task[Any], Until]] = []
        self.cancelled: list[Until] = []

    def _stop_polling(self, _reason: str) -> None:
        self.is_ready = False

    async def call(self, call: Call, limit: float, until: Until | None = None) -> Any:
        kind, run, number = call
        ask, run_function = self.runtime.ask, self.runtime.run
        match kind:
            case "hung" | "quick" | "slow":
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
        alike = [each for each, _ in self.hung if (each[0] == "hung") == (kind in ("hung", "quick", "slow", "guard"))]
        of_runs, of_functions = Counter(each[1] for each in alike), Counter(each[2] for each in alike)
        of_function = 0 if kind in ("guard", "fixer") else of_functions[number]
        return of_runs[run] < OF_RUN and of_function < OF_FUNCTION

    async def hang(self, call: Call) -> None:
        """Make a call that exceeds its limit."""
        until = Until()
        with pytest.raises(TookTooLong):
            await self.call(call, BRIEF, until)
        self.hung.append((call, until))

    async def begin(self, call: Call) -> None:
        """Start a healthy call, and wait until its function runs."""
        until = Until()
        calling = asyncio.create_task(self.call(call, AMPLE, until))
        while not (until.is_awaited or calling.done()):
            await asyncio.sleep(0.001)
        self.slow.append((calling, until))

    async def finish(self, number: int) -> None:
        """Let a healthy call end."""
        if self.slow:
            calling, until = self.slow.pop(number % len(self.slow))
            until.set()
            assert await calling == "answer"

    async def cancel(self, number: int) -> None:
        """Cancel a healthy call, whose function goes on."""
        if self.slow:
            calling, until = self.slow.pop(number % len(self.slow))
            self.cancelled.append(until)
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling

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
        for until in [*self.cancelled, *(each[1] for each in self.hung), *(each[1] for each in self.slow)]:
            until.set()
        self.runtime.close()


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(CALLS, max_size=40))
@example([(kind, run, number) for run in "abcd" for kind in ("hung", "blocker") for number in (0, 1)])
@example(
    [*[("slow", "a", 0)] * 20, ("quick", "a", 0), ("guard", "a", 0), *[("cancel", "a", 0)] * 10, ("quick", "a", 0)]
)
def test_quick_calls_are_answered_while_the_worker_is_ready(calls: list[Call]) -> None:
    """A call is refused only where hung calls of its run, or of its function, have used its share.

    Healthy calls are not limited, and are not hung when they are cancelled. No share is all threads.
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
                    case "finish":
                        await worker.finish(call[2])
                    case "cancel":
                        await worker.cancel(call[2])
                    case _ if not worker.has_room(call):
                        await worker.refuse(call)
                    case "hung" | "blocker":
                        await worker.hang(call)
                    case "slow":
                        await worker.begin(call)
                    case _:
                        assert await worker.call(call, AMPLE) == "answer"
                assert worker.runtime.bounds.hung == len(worker.hung)
                assert worker.is_ready == (len(worker.hung) < THREADS)
            while worker.slow:
                await worker.finish(0)
        finally:
            worker.close()

    with pytest.MonkeyPatch.context() as patch:
        # Here a loop is seen to be blocked at the limit of the call that blocks it.
        patch.setattr(tool_runtime, "START_WITHIN", 2.0)
        asyncio.run(serve())


@settings(max_examples=examples(6), deadline=None)
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
            kinds = {kind for kind, _, _ in calls}
            while ("hung" in kinds) > over.waits_in_thread or ("blocker" in kinds) > over.blocks_loop:
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


@pytest.mark.parametrize("of_one", ["run", "function"])
async def test_calls_that_hang_at_once_count_for_the_share_of_their_run_or_function_only(of_one: str) -> None:
    """All were within their limits when they began. The worker is ready, and serves others."""
    worker = Worker()
    count = 3 * THREADS
    worker.hung = [
        (("hung", "one" if of_one == "run" else f"run-{each}", 0 if of_one == "function" else each % 2), Until())
        for each in range(count)
    ]
    calling = (worker.call(call, 2.0, until) for call, until in worker.hung)
    outcomes = await asyncio.gather(*calling, return_exceptions=True)
    try:
        assert [type(each) for each in outcomes] == [TookTooLong] * count
        assert worker.runtime.bounds.hung == count
        assert worker.is_ready
        await worker.refuse(("quick", "one" if of_one == "run" else "other", 0))
        assert await worker.call(("guard", "other", 0), AMPLE) == "answer"
    finally:
        worker.close()


async def test_healthy_calls_of_a_run_all_run_at_once() -> None:
    """More than its share of threads: each has its whole limit, and the run's guard is answered meanwhile."""
    worker = Worker()
    try:
        for _ in range(3 * THREADS):
            await worker.begin(("slow", "a", 0))
            assert worker.slow[-1][1].is_awaited
        assert await worker.call(("guard", "a", 0), AMPLE) == "answer"
        while worker.slow:
            await worker.finish(0)
    finally:
        worker.close()


async def test_a_call_that_is_refused_is_not_run_when_a_thread_ends_meanwhile() -> None:
    """Its activity might have no time for its whole limit any more."""
    worker, until = Worker(), Until()
    try:
        for _ in range(OF_RUN):
            await worker.hang(("hung", "a", 0))
        calling = asyncio.create_task(worker.call(("quick", "a", 1), 0.5, until))
        await asyncio.sleep(0)
        await worker.end(0)
        with pytest.raises(
            TooManyThreads, match="was not run, as 2 calls of this run that did not end in time still run"
        ):
            await calling
        assert not until.is_awaited
    finally:
        worker.close()


async def test_cancelled_calls_are_not_hung_before_their_limits() -> None:
    """Healthy functions of many runs, which are cancelled at once: the worker serves on."""
    worker = Worker()
    try:
        for number in range(2 * THREADS):
            await worker.begin(("slow", f"run-{number}", number % 2))
        while worker.slow:
            await worker.cancel(0)
        assert worker.runtime.bounds.hung == 0
        assert worker.is_ready
        assert await worker.call(("quick", "other", 0), AMPLE) == "answer"
    finally:
        worker.close()


async def test_a_cancelled_call_that_blocks_a_loop_is_not_hung_at_once() -> None:
    """The loop may run again within the call's limit."""
    worker, until = Worker(), Until()
    calling = asyncio.create_task(worker.call(("quick async", "a", 0), AMPLE, until))
    try:
        while not until.is_awaited:
            await asyncio.sleep(0.001)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        assert worker.runtime.bounds.hung == 0
    finally:
        until.set()
        worker.close()


async def test_a_cancelled_call_is_hung_once_its_limit_has_passed() -> None:
    worker, until = Worker(), Until()
    calling = asyncio.create_task(worker.call(("hung", "a", 0), 0.5, until))
    await asyncio.sleep(0.01)
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    while worker.runtime.bounds.hung != 1:
        await asyncio.sleep(0.01)
    until.set()
    while worker.runtime.bounds.hung:
        await asyncio.sleep(0.01)
    worker.close()
    assert calling.cancelled()


async def test_a_worker_that_stops_has_no_reason_to_fail() -> None:
    """Functions that exceed their limits in its grace time hang, but do not make its end a failure."""
    worker, until = Worker(), Until()

    async def hang(number: int) -> Any:
        call = worker.runtime.run
        return await within_run(f"run-{number}", lambda: call(TOOLS[number % 2], [until], limit=2.0), is_stopping=True)

    outcomes = await asyncio.gather(*(hang(number) for number in range(2 * THREADS)), return_exceptions=True)
    assert [type(each) for each in outcomes] == [TookTooLong] * 2 * THREADS
    assert worker.is_ready
    until.set()
    worker.close()
