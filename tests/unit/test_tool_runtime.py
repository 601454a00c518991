"""The runtime of tools: a tool that hangs is abandoned in time and does not affect others."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import gc
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from mulligan.activities.tool_running import tool_runtime
from mulligan.activities.tool_running.thread_bounds import ThreadBounds, ThreadUse, TookTooLong, TooManyThreads
from mulligan.activities.tool_running.tool_runtime import ToolRuntime

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


OVER = threading.Event()
"""Set when a test ends: functions that hang do so until then."""


@pytest.fixture
async def runtime() -> AsyncIterator[ToolRuntime]:
    OVER.clear()
    runtime = ToolRuntime(threads=400)
    yield runtime
    OVER.set()
    runtime.close()


def sync(value: Any = 1, *, limit: int = 0) -> Any:
    return value, limit, WHO.get()


async def later(value: Any = 1, *, limit: int = 0) -> Any:
    await asyncio.sleep(0)
    return value, limit, WHO.get()


def handed_on(value: Any = 1, *, limit: int = 0) -> Any:
    return later(value, limit=limit)


@pytest.mark.parametrize("function", [sync, later, handed_on])
async def test_functions_of_any_kind_run_in_the_context_of_the_caller(runtime: ToolRuntime, function: Any) -> None:
    """Parameters may be named like those of `run`."""
    WHO.set("me")
    assert await runtime.run(function, [5], {"limit": 7}, limit=5) == (5, 7, "me")


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("is_async", [True, False])
async def test_whatever_a_tool_raises_is_raised_to_the_caller(
    runtime: ToolRuntime, error: BaseException, is_async: bool
) -> None:
    """Including exceptions that would end a thread, a loop or a future."""

    def fail() -> None:
        raise error

    async def fail_later() -> None:
        raise error

    with pytest.raises(type(error)):
        await runtime.run(fail_later if is_async else fail, [], limit=5)
    assert await runtime.run(later, [2], limit=5) == (2, 0, "nobody")


def blocks() -> None:
    OVER.wait(90)


async def blocks_the_loop() -> None:
    OVER.wait(90)


async def ignores() -> None:
    while not OVER.is_set():
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize("function", [blocks, blocks_the_loop, ignores])
async def test_a_tool_that_hangs_times_out_and_does_not_block_the_next_one(runtime: ToolRuntime, function: Any) -> None:
    """The hanging one still runs meanwhile."""
    with pytest.raises(TookTooLong):
        await runtime.run(function, [], limit=0.1)
    assert await runtime.run(later, [3], limit=30) == (3, 0, "nobody")
    assert await runtime.run(sync, [4], limit=30) == (4, 0, "nobody")


async def test_many_hung_threads_do_not_fill_a_pool(runtime: ToolRuntime) -> None:
    results = await asyncio.gather(*(runtime.run(blocks, [], limit=0.1) for _ in range(50)), return_exceptions=True)
    assert all(isinstance(result, TookTooLong) for result in results)
    assert (await runtime.run(sync, [4], limit=30))[0] == 4


async def test_tools_run_on_a_new_loop_while_the_first_is_blocked(
    runtime: ToolRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once each, within their own limits."""
    monkeypatch.setattr(tool_runtime, "START_WITHIN", 0.1)
    ran = []

    async def note(number: int) -> int:
        ran.append(number)
        return number

    blocking = threading.Event()

    async def hangs() -> None:
        blocking.set()
        await blocks_the_loop()

    hung = asyncio.create_task(runtime.run(hangs, [], limit=60))
    await asyncio.to_thread(blocking.wait)
    assert await asyncio.gather(*(runtime.run(note, [n], limit=30) for n in range(5))) == list(range(5))
    assert not hung.done()
    OVER.set()
    await hung
    assert sorted(ran) == list(range(5))


async def test_cancelling_the_caller_cancels_the_coroutine(runtime: ToolRuntime) -> None:
    stopped = asyncio.Event()
    home = asyncio.get_running_loop()

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            home.call_soon_threadsafe(stopped.set)

    task = asyncio.create_task(runtime.run(waits, [], limit=60))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(stopped.wait(), 5)


async def test_tools_running_at_once_get_their_own_results_and_contexts(runtime: ToolRuntime) -> None:
    """In threads and on the loop."""

    async def one(number: int) -> Any:
        WHO.set(f"caller {number}")
        return await runtime.run((sync, later, handed_on)[number % 3], [number], limit=30)

    results = await asyncio.gather(*(one(number) for number in range(150)))
    assert results == [(number, 0, f"caller {number}") for number in range(150)]


async def test_context_changes_of_a_tool_are_not_seen_outside(runtime: ToolRuntime) -> None:
    """Neither by the caller nor by the next tool."""

    def sets() -> None:
        WHO.set("tool")

    async def sets_later() -> None:
        WHO.set("tool")

    WHO.set("me")
    for function in (sets, sets_later):
        await runtime.run(function, [], limit=5)
        assert WHO.get() == "me"
        assert (await runtime.run(later, [], limit=5))[2] == "me"


async def until_no_thread_hangs(runtime: ToolRuntime) -> None:
    while runtime.bounds.hung:
        await asyncio.sleep(0.01)


class Asked:
    async def __call__(self, value: int) -> int:
        return value


@pytest.mark.parametrize(
    "function",
    [functools.partial(later, limit=0), lambda value: later(value), lambda value: asyncio.sleep(0, (value, 0, "nobody"))],
    ids=["partial", "lambda", "another coroutine"],
)  # fmt: skip
async def test_any_callable_that_returns_an_awaitable_is_awaited(runtime: ToolRuntime, function: Any) -> None:
    assert await runtime.run(function, [5], limit=5) == (5, 0, "nobody")
    assert await runtime.run(Asked(), [5], limit=5) == 5


@pytest.mark.parametrize("error", [StopAsyncIteration(), GeneratorExit(), TimeoutError("its own"), StopIteration(1)])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_timeout_or_cancelled_error_of_the_tool_is_raised_unchanged(
    runtime: ToolRuntime, error: BaseException, is_async: bool
) -> None:
    """A TimeoutError of the tool is not that of its limit."""

    def fail() -> None:
        raise error

    async def fail_later() -> None:
        raise error

    with pytest.raises((type(error), RuntimeError)) as raised:
        await runtime.run(fail_later if is_async else fail, [], limit=5)
    # Python does not let a coroutine raise StopIteration.
    told = raised.value.__context__ if isinstance(error, StopIteration) else raised.value
    while isinstance(told, RuntimeError):
        told = told.__cause__
    assert told is error


async def test_arguments_that_do_not_fit_the_function_raise_type_error(runtime: ToolRuntime) -> None:
    """It is handled like any error of a tool."""
    for function in (sync, later):
        with pytest.raises(TypeError, match="unexpected keyword argument 'function'"):
            await runtime.run(function, [], {"function": 1}, limit=5)


async def test_a_coroutine_is_cancelled_at_its_limit_and_may_clean_up(runtime: ToolRuntime) -> None:
    """The caller gets a timeout."""
    cleaned = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    with pytest.raises(TookTooLong, match=r"not done within 0\.05 s"):
        await runtime.run(waits, [], limit=0.05)
    assert await asyncio.to_thread(cleaned.wait, 10)


async def test_threads_that_still_run_after_their_limit_are_counted(
    runtime: ToolRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    """Threads that have returned are not counted."""
    over = threading.Event()
    for _ in range(2):
        with pytest.raises(TookTooLong):
            await runtime.run(over.wait, [30], limit=0.05)
    over.set()
    await until_no_thread_hangs(runtime)
    over.clear()
    with pytest.raises(TookTooLong):
        await runtime.run(over.wait, [30], limit=0.05)
    over.set()
    assert [record.getMessage().split(";")[1] for record in caplog.records if record.name == "mulligan.tools"] == [
        " this worker has 1 such threads.",
        " this worker has 2 such threads.",
        " this worker has 1 such threads.",
    ]


async def test_closing_the_runtime_leaves_no_pending_task_or_unretrieved_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """asyncio would log them."""
    runtime = ToolRuntime()
    ended = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    running = asyncio.create_task(runtime.run(waits, [], limit=60))
    await runtime.run(later, [], limit=5)
    loop = runtime._loops[0].loop
    runtime.close()
    with pytest.raises((asyncio.CancelledError, TookTooLong)):
        await running
    assert await asyncio.to_thread(ended.wait, 10)
    while not loop.is_closed():
        await asyncio.sleep(0.01)
    gc.collect()
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    runtime.close()
    assert (await runtime.run(later, [1], limit=5))[0] == 1
    runtime.close()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_a_sync_wrapper_of_a_coroutine_function_is_awaited(runtime: ToolRuntime) -> None:
    """Such as a user's decorator with `functools.wraps`."""

    @functools.wraps(later)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(later(*args, **kwargs))

    assert await runtime.run(wrapper, [5], limit=5) == (5, 0, "nobody")


async def test_the_limit_applies_to_the_call_and_the_awaited_result_together(runtime: ToolRuntime) -> None:
    def half() -> Any:
        time.sleep(0.6)
        return asyncio.sleep(0.6)

    with pytest.raises(TookTooLong):
        await runtime.run(half, [], limit=1)


async def test_no_thread_is_started_while_too_many_are_left_behind() -> None:
    """Coroutine functions still run, and the others do again after some of the threads have ended."""
    changes: list[int] = []
    runtime = ToolRuntime(changes.append, threads=12)
    over = threading.Event()
    for _ in range(3):
        with pytest.raises(TookTooLong):
            await runtime.run(over.wait, [30], limit=0.05)
    assert sum(changes) == 3
    before = set(threading.enumerate())
    with pytest.raises(TooManyThreads, match=r"was not run, as 3 calls of this run that did not end in time still run"):
        await runtime.run(sync, [1], limit=0.05)
    assert set(threading.enumerate()) <= before
    assert (await runtime.run(later, [1], limit=5))[0] == 1
    over.set()
    await until_no_thread_hangs(runtime)
    assert (await runtime.run(sync, [1], limit=30))[0] == 1
    assert sum(changes) == 0
    runtime.close()


async def test_a_loop_is_reserved_for_a_run_only_while_its_functions_block_another(runtime: ToolRuntime) -> None:
    """After that, all runs use both loops."""
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, workflow_id="a")

    async def call() -> None:
        with pytest.raises(TookTooLong):
            await runtime.run(blocks_the_loop, [], limit=0.1)
        assert (await runtime.run(later, [1], limit=30))[0] == 1

    await environment.run(call)
    assert [each.reserved_for for each in runtime._loops] == ["", "a"]
    OVER.set()
    await until_no_thread_hangs(runtime)
    assert [each.reserved_for for each in runtime._loops] == ["", ""]


class Later:
    def __await__(self) -> Any:
        return later().__await__()


async def test_a_function_whose_second_part_gets_no_loop_may_have_done_its_work(runtime: ToolRuntime) -> None:
    """It was called, so it is not reported as not run."""
    runtime.bounds = ThreadBounds(threads=1)
    runtime.bounds.hang(ThreadUse("", None, "another", is_loop=True))
    with pytest.raises(TookTooLong) as raised:
        await runtime.run(lambda: Later(), [], limit=0.1)
    assert type(raised.value) is TookTooLong
