"""Where tools run: what hangs is left behind on time, and nobody else suffers."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from activities import tool_runtime
from activities.tool_runtime import TookTooLong, ToolRuntime

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@pytest.fixture
async def runtime() -> AsyncIterator[ToolRuntime]:
    runtime = ToolRuntime()
    yield runtime
    runtime.close()


def sync(value: Any = 1, *, limit: int = 0) -> Any:
    return value, limit, WHO.get()


async def later(value: Any = 1, *, limit: int = 0) -> Any:
    await asyncio.sleep(0)
    return value, limit, WHO.get()


def handed_on(value: Any = 1, *, limit: int = 0) -> Any:
    return later(value, limit=limit)


@pytest.mark.parametrize("function", [sync, later, handed_on])
async def test_runs(runtime: ToolRuntime, function: Any) -> None:
    """Any kind of function, with parameters named like ours, in the caller's context."""
    WHO.set("me")
    assert await runtime.run(function, [5], {"limit": 7}, limit=5) == (5, 7, "me")


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("is_async", [True, False])
async def test_what_it_raises_comes_back(runtime: ToolRuntime, error: BaseException, is_async: bool) -> None:
    """Also what would end a thread, a loop or a future."""

    def fail() -> None:
        raise error

    async def fail_later() -> None:
        raise error

    with pytest.raises(type(error)):
        await runtime.run(fail_later if is_async else fail, [], limit=5)
    assert await runtime.run(later, [2], limit=5) == (2, 0, "nobody")


def blocks() -> None:
    time.sleep(3)


async def blocks_the_loop() -> None:
    time.sleep(3)  # noqa: ASYNC251 - the fault under test


async def ignores() -> None:
    for _ in range(30):
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize("function", [blocks, blocks_the_loop, ignores])
async def test_who_hangs_is_left_behind(runtime: ToolRuntime, function: Any) -> None:
    """The caller is told, and the next tool runs although the hung one still does."""
    with pytest.raises(TookTooLong):
        await runtime.run(function, [], limit=0.1)
    assert await runtime.run(later, [3], limit=0.1) == (3, 0, "nobody")
    assert await runtime.run(sync, [4], limit=2) == (4, 0, "nobody")


async def test_many_hung_threads_do_not_fill_a_pool(runtime: ToolRuntime) -> None:
    results = await asyncio.gather(*(runtime.run(blocks, [], limit=0.1) for _ in range(50)), return_exceptions=True)
    assert all(isinstance(result, TookTooLong) for result in results)
    assert (await runtime.run(sync, [4], limit=2))[0] == 4


async def test_a_blocked_loop_holds_nobody_up(runtime: ToolRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools that come while the loop is blocked run on a new one, once each, within their own limit."""
    monkeypatch.setattr(tool_runtime, "START_WITHIN", 0.1)
    ran = []

    async def note(number: int) -> int:
        ran.append(number)
        return number

    hung = asyncio.create_task(runtime.run(blocks_the_loop, [], limit=10))
    await asyncio.sleep(0.2)
    assert not hung.done()
    assert await asyncio.gather(*(runtime.run(note, [n], limit=0.5) for n in range(5))) == list(range(5))
    assert not hung.done()
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
