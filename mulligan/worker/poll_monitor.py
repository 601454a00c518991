"""Checks with the server that a worker polls its task queues.

A worker that runs but does not poll is an outage without an error: its runs just wait. The SDK does not show its polls to a
program: the metric `temporal_num_pollers` goes to the exporter that is set, if one is. But the server records for each
worker when a poll began and ended, and a poll lasts one minute at most. So a worker that has a free slot, and for which the
server has recorded no poll for some minutes, does not poll, whatever the reason is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from math import ceil
from typing import Any, NoReturn

from temporalio import activity
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, ListTaskQueuePartitionsRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from mulligan.client.served_agents import without_tag

SECONDS_BETWEEN_CHECKS = 60.0
MISSES_TO_REPORT = 3
"""How many checks in a row must see no new poll. A poll of 60 s (the SDK gives up after 70 s) can cause two."""

_TYPES: Mapping[str, TaskQueueType.ValueType] = {
    "workflow": TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    "activity": TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
}
_REFUSED = {RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED}


class ActivitySlots(Interceptor):
    """Counts the activities that a worker runs. A worker whose slots are all in use does not poll, and should not."""

    def __init__(self, slots: int) -> None:
        self.number = slots
        self._used = 0

    @property
    def all_in_use(self) -> bool:
        """Whether the worker can start no further activity now."""
        return self._used >= self.number

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - Temporal's name
        """Count the activity while it runs."""
        return _CountedActivity(next, self)

    async def run(self, execute: ActivityInboundInterceptor, input: ExecuteActivityInput) -> Any:  # noqa: A002 - Temporal's name
        """Execute an activity and count it meanwhile, unless it is local: local activities have slots of their own."""
        if activity.info().is_local:
            return await execute.execute_activity(input)
        self._used += 1
        try:
            return await execute.execute_activity(input)
        finally:
            self._used -= 1


class _CountedActivity(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, slots: ActivitySlots) -> None:  # noqa: A002 - Temporal's name
        super().__init__(next)
        self._slots = slots

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - Temporal's name
        return await self._slots.run(self.next, input)


class PollMonitor:
    """Watches whether the server sees polls of this worker, for one type of task of one task queue.

    A check is one DescribeTaskQueue, and if the first partition shows no new poll, one more for each other partition.

    Args:
        client: the worker's client. Its identity is the one that the polls have, which may end with a tag.
        task_queue: the worker's task queue.
        task_type: `workflow` or `activity`.
        report: called with each line that operators should see.
        all_in_use: whether all slots are in use, so that the worker does not poll.
        identity: the worker's identity, if it is not that of its client.
        misses_to_report: how many checks in a row must see no new poll.
    """

    def __init__(
        self,
        client: Client,
        task_queue: str,
        task_type: str,
        report: Callable[[str], None],
        *,
        all_in_use: Callable[[], bool] = lambda: False,
        identity: str | None = None,
        misses_to_report: int = MISSES_TO_REPORT,
    ) -> None:
        self.reason = ""
        """Why this worker is not ready; "" while it polls, or while that is unknown."""
        self._client = client
        self._identity = without_tag(identity or client.service_client.config.identity)
        self.task_queue = task_queue
        self.task_type = task_type
        self._all_in_use = all_in_use
        self._misses_to_report = misses_to_report
        self._report = report
        self._misses = 0
        self._is_refused = False
        self._last_poll: dict[str, int] = {}
        """For each partition: when the server last recorded a poll of this worker, in nanoseconds of the server's clock."""

    async def watch(self) -> NoReturn:
        """Check the polls until cancelled."""
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_CHECKS)
            await self.check()

    async def check(self) -> None:
        """Check once, and report a change. If the server does not respond, nothing is known and nothing is reported."""
        if self._all_in_use():
            self._set_polling()
            return
        try:
            polled = await self._has_polled()
        except RPCError as error:
            # `/readyz` reports a server that cannot be reached. Whether the worker polled meanwhile is unknown.
            self._misses = 0
            if error.status in _REFUSED and not self._is_refused:
                self._is_refused = True
                self._report(f"Whether this worker polls cannot be watched: {error.message or error.status.name}.")
            return
        if polled:
            self._set_polling()
        else:
            self._count_miss()

    async def _has_polled(self) -> bool:
        """Whether the server has recorded a poll of this worker since the last check."""
        if await self._has_polled_partition(self.task_queue):
            return True
        # A queue with several partitions spreads its pollers, so the first partition may see few of them.
        request = ListTaskQueuePartitionsRequest(
            namespace=self._client.namespace, task_queue=TaskQueue(name=self.task_queue)
        )
        listed = await self._client.workflow_service.list_task_queue_partitions(request, timeout=timedelta(seconds=5))
        of_type = (
            listed.workflow_task_queue_partitions
            if self.task_type == "workflow"
            else listed.activity_task_queue_partitions
        )
        others = [partition.key for partition in of_type if partition.key != self.task_queue]
        # No short cut by a generator: each partition's last poll must be known for the next check.
        return any([await self._has_polled_partition(name) for name in others])

    async def _has_polled_partition(self, name: str) -> bool:
        request = DescribeTaskQueueRequest(
            namespace=self._client.namespace, task_queue=TaskQueue(name=name), task_queue_type=_TYPES[self.task_type]
        )
        described = await self._client.workflow_service.describe_task_queue(request, timeout=timedelta(seconds=5))
        ours = [each.last_access_time for each in described.pollers if without_tag(each.identity) == self._identity]
        last = max((time.ToNanoseconds() for time in ours), default=0)
        # Compared with the server's own earlier time, not with our clock. After a restart of the server it is a new time.
        before = self._last_poll.get(name, 0)
        self._last_poll[name] = last
        return last not in (0, before)

    def _set_polling(self) -> None:
        self._misses = 0
        if self.reason:
            self.reason = ""
            self._report(f"Polling again: task queue {self.task_queue!r}, {self.task_type} tasks.")

    def _count_miss(self) -> None:
        self._misses += 1
        if self._misses >= self._misses_to_report and not self.reason:
            minutes = SECONDS_BETWEEN_CHECKS * self._misses / 60
            self.reason = f"not polling task queue {self.task_queue!r} for {self.task_type} tasks"
            self._report(
                f"Not polling: for {minutes:.3g} min the server has seen no poll of this worker ({self._identity}) for "
                f"{self.task_type} tasks of task queue {self.task_queue!r}, so it takes none. Restart this worker."
            )


def activity_monitor(
    client: Client,
    task_queue: str,
    report: Callable[[str], None],
    slots: ActivitySlots,
    per_second: float | None,
    identity: str | None = None,
) -> PollMonitor:
    """A monitor for activity tasks. `per_second`: the worker's rate limit; the SDK polls no more often than that."""
    return PollMonitor(
        client,
        task_queue,
        "activity",
        report,
        all_in_use=lambda: slots.all_in_use,
        identity=identity,
        misses_to_report=MISSES_TO_REPORT + (ceil(1 / (per_second * SECONDS_BETWEEN_CHECKS)) if per_second else 0),
    )
