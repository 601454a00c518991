"""The workers that a process has beside the worker of its task queue, for activities from other queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client
from temporalio.worker import Interceptor, Worker

from mulligan.client.served_agents import ServedAgents
from mulligan.worker.group import WorkerGroup
from mulligan.worker.logs import ActivityLogFields, say
from mulligan.worker.poll_monitor import ActivitySlots, PollMonitor, activity_monitor
from mulligan.worker.sdk_workarounds.temporal_definitions import activity_definition

MODELS_SUFFIX = "-models"


@dataclass(frozen=True)
class ActivityQueue:
    """A task queue with activities. `options`: those of its worker."""

    name: str
    activities: Sequence[Callable[..., Any]]
    options: dict[str, Any]


def queues_beside(
    task_queue: str,
    served: ServedAgents | None,
    activities: Sequence[Callable[..., Any]],
    options: dict[str, Any],
    of_models: tuple[Iterable[str], dict[str, Any]] | None,
) -> list[ActivityQueue]:
    """The queues from which a worker of `task_queue` takes activities as well.

    Args:
        task_queue: the worker's own queue.
        served: its agents, for the activities that workers with other agents have declined; None if it takes none.
        activities: all activities of agents.
        options: the options of the worker for declined activities.
        of_models: where model calls have limits of their own, and so queues of their own: the types of the activities,
            and the options of their worker.
    """
    types, model_options = of_models or ((), {})
    calls = [each for each in activities if activity_definition(each).name in set(types)]
    queues = []
    for name in (task_queue, *([served.queue] if served is not None and served.tag else [])):
        if name != task_queue:
            queues.append(ActivityQueue(name, activities, options))
        if calls:
            queues.append(ActivityQueue(f"{name}{MODELS_SUFFIX}", calls, model_options))
    return queues


def activity_workers(
    client: Client, queues: Iterable[ActivityQueue], interceptors: Sequence[Interceptor], group: WorkerGroup
) -> tuple[list[Worker], list[PollMonitor]]:
    """A worker for each queue, and the monitor of its polls.

    They share the activities' cache and connections; each has slots and a rate limit of its own.
    """
    workers, monitors = [], []
    for queue in queues:
        slots = ActivitySlots(queue.options["max_concurrent_activities"])
        workers.append(
            Worker(
                client,
                task_queue=queue.name,
                activities=queue.activities,
                interceptors=[*interceptors, slots, ActivityLogFields()],
                on_fatal_error=group.on_fatal_error(queue.name),
                **queue.options,
            )
        )
        per_second = queue.options["max_activities_per_second"]
        monitors.append(activity_monitor(client, queue.name, say, slots, per_second))
    return workers, monitors
