"""Waits for the events of a stream, and notices when none comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def with_pauses(watched: AsyncIterator[T], seconds: Callable[[], float | None]) -> AsyncGenerator[T | None]:
    """The events of a stream, which is closed at the end; None each time that none has come for so many seconds.

    `seconds`: asked before each wait; where it returns None, nothing limits the wait.
    """
    async with aclosing(watched) as events:  # type: ignore[type-var]
        upcoming = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                done, _ = await asyncio.wait({upcoming}, timeout=seconds())
                if not done:
                    yield None
                    continue
                if (event := upcoming.result()) is None:
                    return
                yield event
                upcoming = asyncio.ensure_future(anext(events, None))
        finally:
            upcoming.cancel()
            await asyncio.gather(upcoming, return_exceptions=True)
