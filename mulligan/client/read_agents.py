"""Which agents the workers of a task queue serve."""

from __future__ import annotations

import asyncio
import difflib
import secrets
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowFailureError

from mulligan.wire.agent_list import AGENTS_WORKFLOW
from mulligan.wire.agent_version import CURRENT, DIGITS, LEAST_DIGITS

WORKER_TIMEOUT = timedelta(seconds=5)
"""How long the workers may take to answer."""
VALID_SECONDS, RECENT_SECONDS = 60.0, 2.0
"""How long an answer is used; and how long for an agent that is not in it, which a new worker may serve by now."""


def unknown_agent(name: str, known: Iterable[str]) -> str:
    """The sentence for an agent that no worker serves, with the nearest name of those that are known."""
    names = sorted(known)
    near = difflib.get_close_matches(name[:80], names, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    return f"There is no agent {name[:80]!r}; there are: {(', '.join(names) or 'none')[:1_000]}.{meant}"


def version_fault(agent: Mapping[str, Any], wanted: str) -> str:
    """Why an agent cannot work by a version; "" if it can, or if only a worker knows.

    Args:
        agent: The agent, as `AgentReader` has it.
        wanted: `current`, a label, or the beginning of a digest.
    """
    name = agent["name"]
    if wanted == CURRENT:
        return ""
    if "version" not in agent:
        return (
            f"{wanted[:80]!r} is no version of the agent {name!r}: it is declared in Python, and has {CURRENT!r} alone."
        )
    labels = [each["label"] for each in agent.get("labels", ())]
    if wanted in labels or DIGITS.fullmatch(wanted):
        return ""
    return (
        f"{wanted[:80]!r} is no label of the agent {name!r} and no digest, which has {LEAST_DIGITS} digits or more; its "
        f"labels are: {(', '.join(labels) or 'none')[:1_000]}."
    )


class AgentReader:
    """Asks a worker of the task queue, and keeps the answer for a while."""

    def __init__(self, client: Client, task_queue: str) -> None:
        self._client, self._task_queue = client, task_queue
        self._agents: dict[str, dict[str, Any]] | None = None
        self._read_at: float | None = None
        self._lock = asyncio.Lock()

    async def read(self, *, valid_seconds: float = VALID_SECONDS) -> dict[str, dict[str, Any]] | None:
        """The agents by their names, each as `mulligan agents --json` prints it, without the path of its file. None: no
        worker answers.

        Raises:
            RPCError: Temporal does not answer.
        """
        loop = asyncio.get_running_loop()
        async with self._lock:
            if self._agents is None:
                valid_seconds = min(valid_seconds, RECENT_SECONDS)
            if self._read_at is None or loop.time() - self._read_at > valid_seconds:
                self._agents, self._read_at = await self._ask(), loop.time()
            return self._agents

    async def _ask(self) -> dict[str, dict[str, Any]] | None:
        # Each answer is a workflow of a few events, so that any worker of the queue can give it.
        handle: Any = await self._client.start_workflow(
            AGENTS_WORKFLOW,
            id=f"mulligan-agents-{secrets.token_hex(6)}",
            task_queue=self._task_queue,
            execution_timeout=WORKER_TIMEOUT,
        )
        try:
            answer = await handle.result()
        except WorkflowFailureError:
            return None
        agents = ({name: value for name, value in agent.items() if name != "source"} for agent in answer["agents"])
        return {agent["name"]: agent for agent in agents}
