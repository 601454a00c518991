"""Warns operators if workers of one task queue serve different agents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import NoReturn

from temporalio.client import Client
from temporalio.service import RPCError

from mulligan.client.pollers import RECENT_POLL
from mulligan.client.served_agents import MOST_SETS, ServedAgents, read_other_polls, tag_of
from mulligan.worker.loading import LoadedModules
from mulligan.worker.logs import say

SECONDS_TO_FIRST_CHECK, SECONDS_BETWEEN_FIRST_CHECKS, SECONDS_BETWEEN_CHECKS = 0.5, 5.0, 60.0
"""An idle worker polls again each minute, so a running worker is reported within a minute, later only new ones."""


def served_agents(loaded: LoadedModules, task_queue: str, file_names: Iterable[str] = ()) -> ServedAgents:
    """What a worker of these modules serves on a task queue. `file_names`: of agents that are files, not read yet."""
    return ServedAgents(task_queue, frozenset([*loaded.registry.agents, *file_names]))


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
    known: dict[str, datetime] | None = None
    """The polls at the first check: a worker that has stopped since is listed for a while, but polls no more."""
    started = time.monotonic()
    await asyncio.sleep(SECONDS_TO_FIRST_CHECK)
    while True:
        with suppress(RPCError):
            polls = await read_other_polls(client, served)
            known = polls if known is None else known
            for identity, polled in polls.items():
                tag = tag_of(identity)
                if known.get(identity) != polled and tag not in reported and len(reported) < MOST_SETS:
                    reported.add(tag)
                    say(_warning(served.task_queue, identity))
        is_new = time.monotonic() - started < RECENT_POLL.total_seconds()
        await asyncio.sleep(SECONDS_BETWEEN_FIRST_CHECKS if is_new else SECONDS_BETWEEN_CHECKS)


def _warning(task_queue: str, identity: str) -> str:
    return (
        f"warning: another worker of task queue {task_queue!r} ({identity}) serves other agents than this one. Temporal "
        "hands a task to any worker of its queue, so a task may first reach a worker that does not serve its agent, "
        "which costs time. Load the same modules in all workers of a task queue, or use a task queue for each set of "
        "modules."
    )
