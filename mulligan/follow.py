"""Following a run from outside: its steps as they come, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import CancelledError, FailureError
from temporalio.service import RPCError, RPCStatusCode

from mulligan.errors import error_of

__all__ = ["Ended", "all_steps", "ask", "ended", "follow"]

EVERY = 0.5
"""Seconds between two looks at a run: each is a query that its worker answers."""

_AWAY = {
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.FAILED_PRECONDITION,
    RPCStatusCode.CANCELLED,
}
"""What a query answers while no worker polls."""
_PATIENCE = timedelta(seconds=10)

Handle = WorkflowHandle[Any, Any]


@dataclass(frozen=True)
class Ended:
    """How a run ended: its result, or the error that it failed with."""

    status: str
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    @property
    def completed(self) -> bool:
        """Whether it came to its end; a run out of steps, refused, failed or cancelled did not."""
        return self.status == "completed"


async def ended(handle: Handle) -> Ended:
    """Wait for the end of a run (and of all runs that it continued as)."""
    try:
        result = await handle.result()
    except WorkflowFailureError as failure:
        cause = failure.cause
        if isinstance(cause, CancelledError):
            return Ended("cancelled")
        typed = error_of(failure)
        if typed is not None:
            return Ended("failed", error={"type": typed.type, "message": typed.message})
        message = cause.message if isinstance(cause, FailureError) else str(cause)
        return Ended("failed", error={"type": type(cause).__name__, "message": message})
    if not isinstance(result, dict) or "status" not in result:
        return Ended("completed", result={"status": "completed", "output": result})
    return Ended(result["status"], result=result)


async def ask(handle: Handle, query: str, *args: Any) -> Any:
    """A query's answer.

    Asked twice: a question that comes just as a worker evicts the run can be lost with it. Seen now and then in runs of
    the whole suite, under load, with three questions at a time; not reproduced alone.

    Raises:
        RPCError: no worker answers.
    """
    try:
        return await handle.query(query, args=args, rpc_timeout=_PATIENCE)
    except RPCError:
        return await handle.query(query, args=args, rpc_timeout=_PATIENCE)


async def all_steps(handle: Handle, since: int = 0) -> list[dict[str, Any]]:
    """The steps from number `since` (counted from 0) on."""
    steps: list[dict[str, Any]] = []
    following: int | None = since
    while following is not None:
        page = await ask(handle, "steps", following, 100)
        steps += page["steps"]
        following = page["next"]
    return steps


async def follow(handle: Handle) -> AsyncIterator[dict[str, Any] | Ended]:
    """Each step once all its calls are settled, then how the run ended.

    A run whose worker is away is waited for; its steps come when it is back.
    """
    end = asyncio.create_task(ended(handle))
    seen = 0
    try:
        while True:
            over = end.done()
            try:
                for step in await all_steps(handle, seen):
                    if not over and any(call["result"] is None for call in step["tool_calls"]):
                        break
                    seen += 1
                    yield step
            except RPCError as error:
                if over or error.status not in _AWAY:
                    raise
            if over:
                yield end.result()
                return
            await asyncio.wait([end], timeout=EVERY)
    finally:
        end.cancel()
