"""Warns operators if workers of one task queue serve different agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NoReturn

from temporalio.client import Client
from temporalio.service import RPCError

from mulligan.client.served_agents import ServedAgents, read_other_workers
from mulligan.worker.loading import LoadedModules
from mulligan.worker.logs import say

__all__ = ["served_agents", "warning_of_other_agents"]

SECONDS_TO_FIRST_CHECK, SECONDS_BETWEEN_CHECKS = 0.5, 60.0
"""The first one is made when this worker polls. Workers that start at the same moment are seen by the next one."""


def served_agents(loaded: LoadedModules, task_queue: str) -> ServedAgents:
    """What a worker of these modules serves on a task queue."""
    return ServedAgents(task_queue, frozenset(loaded.registry.agents))


@asynccontextmanager
async def warning_of_other_agents(client: Client, served: ServedAgents | None) -> AsyncIterator[None]:
    """While the block runs, log a warning for each set of other agents that workers of the task queue serve."""
    if served is None:
        yield
        return
    watching = asyncio.create_task(_watch(client, served))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(client: Client, served: ServedAgents) -> NoReturn:
    reported: set[str] = set()
    await asyncio.sleep(SECONDS_TO_FIRST_CHECK)
    while True:
        others: dict[str, str] = {}
        with suppress(RPCError):
            others = await read_other_workers(client, served)
        for tag in others.keys() - reported:
            reported.add(tag)
            say(
                f"warning: another worker of task queue {served.task_queue!r} ({others[tag]}) serves other agents than "
                "this one. Temporal hands a task to any worker of its queue, so a task may first reach a "
                "worker that does not serve its agent, which costs time. Load the same modules in all workers of a task "
                "queue, or use a task queue for each set of modules. If that worker was stopped within the last minute, "
                "ignore this."
            )
        await asyncio.sleep(SECONDS_BETWEEN_CHECKS)
