"""Which workers of a task queue serve the same agents.

Temporal hands a task of a queue to any of its workers. So each worker has a tag, a digest of the names of its agents: its
identity ends with it, where other workers read it from the queue's pollers, and it also takes activities from a queue of
that name (docs/decisions/2026-11-22-workers-that-serve-different-agents.md).
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.client import Client

from mulligan.client.pollers import recent_pollers

MOST_SETS = 5
"""The maximum number of other sets of agents that are looked at on one task queue."""
REQUEST_TIMEOUT = timedelta(seconds=3)
_TAG = re.compile(r"#~[a-z2-7]{4}(-models)?$")
"""It begins with `#~`, so that the end of a user's own name, such as `pod#prod7`, is not taken for a tag."""


@dataclass(frozen=True)
class ServedAgents:
    """The task queue of a worker, and the names of the agents that it serves there."""

    task_queue: str
    names: frozenset[str]

    @property
    def tag(self) -> str:
        """What workers with the same agents have in common; "" for a worker without agents."""
        if not self.names:
            return ""
        digest = hashlib.sha256(chr(31).join(sorted(self.names)).encode()).digest()
        # Short, as it is ten times in the history of each step: one of a million, and few sets share a task queue.
        return f"#~{base64.b32encode(digest)[:4].decode().lower()}"

    @property
    def queue(self) -> str:
        """The task queue from which only workers with these agents take activities."""
        return f"{self.task_queue}{self.tag}"


def without_tag(name: str) -> str:
    """An identity or a task queue without its tag, if it has one; then a queue for model calls loses `-models` as well."""
    return _TAG.sub("", name)


async def read_other_workers(client: Client, served: ServedAgents) -> dict[str, str]:
    """The workers that poll the task queue and serve other agents: an identity for each tag, the latest poll first.

    A worker that was stopped within the last 70 s may be among them.

    Raises:
        RPCError: Temporal does not answer.
    """
    identities: dict[str, str] = {}
    for identity in await read_other_polls(client, served):
        if len(identities) < MOST_SETS:
            identities.setdefault(tag_of(identity), identity)
    return identities


async def read_other_polls(client: Client, served: ServedAgents) -> dict[str, datetime]:
    """When each worker that serves other agents polled the task queue last, by its identity; the latest first.

    Workers without a tag, which are a user's own, are left out.

    Raises:
        RPCError: Temporal does not answer.
    """
    recent = await recent_pollers(client, served.task_queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, REQUEST_TIMEOUT)
    return {identity: polled for identity, polled in recent.items() if tag_of(identity) not in ("", served.tag)}


def tag_of(identity: str) -> str:
    """The tag at the end of a worker's identity; "" if it has none."""
    tag = _TAG.search(identity)
    return tag[0] if tag else ""
