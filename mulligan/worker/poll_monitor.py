"""Whether a worker really polls its task queues, asked of the server.

A worker that is up and does not poll is an outage that nobody sees: its runs wait without an error. The SDK tells a program
nothing of its polls: the metric `temporal_num_pollers` leaves by the one exporter that is set, or not at all. But the server
notes for each worker when a poll began and ended, and a poll lasts a minute at most. So a worker that has a free slot and
of which the server notes no poll for some minutes does not poll, whatever the reason is.
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

__all__ = ["ActivitySlots", "PollMonitor", "activity_monitor"]

SECONDS_BETWEEN_CHECKS = 60.0
MISSES_TO_REPORT = 3
"""How many checks in a row must see no new poll. A poll of 60 s (the SDK gives up after 70 s) can cause two."""

_TYPES: Mapping[str, TaskQueueType.ValueType] = {
    "workflow": TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    "activity": TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
}
_REFUSED = {RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED}


class ActivitySlots(Interceptor):
    """How many activities of a worker run: one whose slots are all in use rightly does not poll for activities."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._used = 0

    @property
    def all_in_use(self) -> bool:
        """Whether the worker can take no further activity now."""
        return self._used >= self._slots

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - Temporal's name
        """Count what the worker runs."""
        return _Counted(next, self)

    async def run(self, execute: ActivityInboundInterceptor, input: ExecuteActivityInput) -> Any:  # noqa: A002 - Temporal's name
        """Execute an activity, counted while it runs. Local activities have slots of their own."""
        if activity.info().is_local:
            return await execute.execute_activity(input)
        self._used += 1
        try:
            return await execute.execute_activity(input)
        finally:
            self._used -= 1


class _Counted(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, slots: ActivitySlots) -> None:  # noqa: A002 - Temporal's name
        super().__init__(next)
        self._slots = slots

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - Temporal's name
        return await self._slots.run(self.next, input)


class PollMonitor:
    """Watches whether the server sees polls of this worker for one type of task of one task queue.

    A check is one DescribeTaskQueue; where the first partition shows no new poll, one more for each other partition.

    Args:
        client: the worker's own; its identity is the one that is looked for.
        task_queue: the worker's.
        task_type: `workflow` or `activity`.
        report: takes each line for people.
        all_in_use: whether all slots are in use, so that no poll is due.
        seconds_between_checks: SECONDS_BETWEEN_CHECKS if None.
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
        seconds_between_checks: float | None = None,
        misses_to_report: int = MISSES_TO_REPORT,
    ) -> None:
        self.reason = ""
        """Why this worker is not ready; empty while it polls, or while that is not known."""
        self._client = client
        self._identity = client.service_client.config.identity
        self.task_queue = task_queue
        self.task_type = task_type
        self._all_in_use = all_in_use
        self._every = SECONDS_BETWEEN_CHECKS if seconds_between_checks is None else seconds_between_checks
        self._misses_to_report = misses_to_report
        self._report = report
        self._misses = 0
        self._cannot_ask = False
        self._seen: dict[str, int] = {}
        """For each partition: when the server last noted a poll of ours, in nanoseconds of its own clock."""

    async def watch(self) -> NoReturn:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(self._every)
            await self.check()

    async def check(self) -> None:
        """Ask the server once, and report a change. What the server does not answer is no finding."""
        if self._all_in_use():
            self._polls()
            return
        try:
            polled = await self._polled_since()
        except RPCError as error:
            # `/readyz` reports a server that cannot be reached; what the worker polled meanwhile is unknown.
            self._misses = 0
            if error.status in _REFUSED and not self._cannot_ask:
                self._cannot_ask = True
                self._report(f"Whether this worker polls cannot be watched: {error.message or error.status.name}.")
            return
        if polled:
            self._polls()
        else:
            self._missed()

    async def _polled_since(self) -> bool:
        """Whether the server has noted a poll of this worker since the last check."""
        if await self._polled_partition(self.task_queue):
            return True
        # A queue with several partitions spreads its pollers; few of them may be seen at the first.
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
        # All of them: what is new at the next check must be newer than this one.
        return any([await self._polled_partition(name) for name in others])

    async def _polled_partition(self, name: str) -> bool:
        request = DescribeTaskQueueRequest(
            namespace=self._client.namespace, task_queue=TaskQueue(name=name), task_queue_type=_TYPES[self.task_type]
        )
        described = await self._client.workflow_service.describe_task_queue(request, timeout=timedelta(seconds=5))
        ours = [each.last_access_time for each in described.pollers if each.identity == self._identity]
        last = max((time.ToNanoseconds() for time in ours), default=0)
        # Compared with what this server said before, never with our clock. After the server's restart it is a new time.
        before = self._seen.get(name, 0)
        self._seen[name] = last
        return last not in (0, before)

    def _polls(self) -> None:
        self._misses = 0
        if self.reason:
            self.reason = ""
            self._report(f"Polling again: task queue {self.task_queue!r}, {self.task_type} tasks.")

    def _missed(self) -> None:
        self._misses += 1
        if self._misses >= self._misses_to_report and not self.reason:
            minutes = self._every * self._misses / 60
            self.reason = f"not polling task queue {self.task_queue!r} for {self.task_type} tasks"
            self._report(
                f"Not polling: for {minutes:.3g} min the server has seen no poll of this worker ({self._identity}) for "
                f"{self.task_type} tasks of task queue {self.task_queue!r}, so it takes none. Restart this worker."
            )


def activity_monitor(
    client: Client, task_queue: str, report: Callable[[str], None], slots: ActivitySlots, per_second: float | None
) -> PollMonitor:
    """A monitor for activity tasks. `per_second`: the worker's own rate; the SDK polls no more often than that."""
    misses = MISSES_TO_REPORT + (ceil(1 / (per_second * SECONDS_BETWEEN_CHECKS)) if per_second else 0)
    return PollMonitor(
        client, task_queue, "activity", report, all_in_use=lambda: slots.all_in_use, misses_to_report=misses
    )
