"""Which workers poll a task queue, as Temporal lists them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueKind, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

RECENT_POLL = timedelta(seconds=70)
"""A poll lasts 60 s at most, and Temporal lists pollers for minutes after their last poll."""


async def last_polls(
    client: Client, task_queue: str, kind: TaskQueueType.ValueType, timeout: timedelta
) -> dict[str, datetime]:
    """When each worker, by its identity, polled the queue last; the latest first. Temporal forgets them after minutes.

    Raises:
        RPCError: Temporal does not answer.
    """
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=task_queue, kind=TaskQueueKind.TASK_QUEUE_KIND_NORMAL),
        task_queue_type=kind,
    )
    described = await client.workflow_service.describe_task_queue(request, timeout=timeout)
    polls = sorted((each.last_access_time.ToDatetime(tzinfo=UTC), each.identity) for each in described.pollers)
    return {identity: polled for polled, identity in reversed(polls)}


async def recent_pollers(
    client: Client, task_queue: str, kind: TaskQueueType.ValueType, timeout: timedelta
) -> dict[str, datetime]:
    """When each worker that polls the queue now polled it last, by its identity; the latest first.

    Raises:
        RPCError: Temporal does not answer.
    """
    oldest = datetime.now(UTC) - RECENT_POLL
    polls = await last_polls(client, task_queue, kind, timeout)
    return {identity: polled for identity, polled in polls.items() if polled > oldest}
