"""Which workers of a task queue serve the same agents.

Temporal hands a task of a queue to any of its workers. So each worker has a tag, a digest of the names of its agents: its
identity ends with it, where other workers read it from the queue's pollers, and it also takes activities from a queue of
that name (docs/decisions/2026-11-22-workers-that-serve-different-agents.md).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

__all__ = ["ServedAgents", "read_other_workers", "untagged"]

MOST_SETS = 5
"""How many other sets of agents are told apart on one task queue."""
RECENT_POLL = timedelta(seconds=70)
"""A poll lasts 60 s at most, and Temporal lists pollers for minutes after their last poll."""
REQUEST_TIMEOUT = timedelta(seconds=3)
_TAG = re.compile(r"#[0-9a-f]{8}(-models)?$")


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
        return f"#{hashlib.sha256(chr(31).join(sorted(self.names)).encode()).hexdigest()[:8]}"

    @property
    def queue(self) -> str:
        """The task queue from which only workers with these agents take activities."""
        return f"{self.task_queue}{self.tag}"


def untagged(name: str) -> str:
    """An identity or a task queue without its tag, if it has one; then a queue for model calls loses `-models` as well."""
    return _TAG.sub("", name)


async def read_other_workers(client: Client, served: ServedAgents) -> dict[str, str]:
    """The workers that poll the task queue and serve other agents: an identity for each tag, the latest poll first.

    Raises:
        RPCError: Temporal does not answer.
    """
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=served.task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    described = await client.workflow_service.describe_task_queue(request, timeout=REQUEST_TIMEOUT)
    polls = sorted(described.pollers, key=lambda poller: -poller.last_access_time.ToNanoseconds())
    oldest = datetime.now(UTC) - RECENT_POLL
    recent = [poller.identity for poller in polls if poller.last_access_time.ToDatetime(tzinfo=UTC) > oldest]
    return _by_tag(recent, served.tag)


def _by_tag(identities: Iterable[str], own: str) -> dict[str, str]:
    """The first identity of each tag but one's own. Workers of older versions have no tag, and are left out."""
    found: dict[str, str] = {}
    for identity in identities:
        tag = _TAG.search(identity)
        if tag is not None and tag[0] != own and len(found) < MOST_SETS:
            found.setdefault(tag[0], identity)
    return found
