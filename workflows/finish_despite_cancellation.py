"""Runs what must be done after a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finish_despite_cancellation(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a task that is cancelled already, and may be cancelled again."""
    task = asyncio.create_task(coroutine)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                raise
