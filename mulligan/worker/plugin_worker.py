"""What `MulliganPlugin` adds to one worker: the parts of agents, and the workers for activities of other queues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker, WorkerConfig

from mulligan.client.settings import Settings, settings
from mulligan.observe.telemetry import Telemetry
from mulligan.worker.activity_workers import MODELS_SUFFIX, activity_workers, queues_beside
from mulligan.worker.agent_folder import AgentFolder, names_in_folder
from mulligan.worker.all_endpoints import check_endpoints
from mulligan.worker.connection_error import connection_error
from mulligan.worker.group import WorkerGroup
from mulligan.worker.live_publisher import live_publisher, publishing
from mulligan.worker.loading import ACTIVITY_TYPES, LoadedModules
from mulligan.worker.logs import ActivityLogFields, say, shorten_failures
from mulligan.worker.options import FEW_POLLS, SDK_STICKY_TIMEOUT, STICKY_TIMEOUT, model_limits
from mulligan.worker.other_agents import served_agents, warning_of_other_agents
from mulligan.worker.poll_monitor import ActivitySlots, PollMonitor, activity_monitor
from mulligan.worker.sdk_workarounds.temporal_definitions import workflow_definition
from mulligan.worker.sdk_workarounds.until_shutdown import until_shutdown
from mulligan.worker.sdk_workarounds.workaround_runner import apply_workarounds
from mulligan.worker.sdk_workarounds.workflow_cache import WorkflowCache
from mulligan.worker.wiring import (
    ACTIVITIES,
    CACHED_WORKFLOWS,
    SECONDS_AFTER_GRACE,
    WORKFLOWS,
    AgentActivities,
    LoadedFeatures,
    with_agents,
)

_OPTIONS_OF_ALL = (
    "build_id",
    "default_heartbeat_throttle_interval",
    "deployment_config",
    "graceful_shutdown_timeout",
    "max_heartbeat_throttle_interval",
    "use_worker_versioning",
)
"""The options of a worker that those beside it have as well. Without a build id, the SDK compiles all loaded modules again
to hash them, which blocks the event loop for seconds."""
_LIMITS = ("max_activities_per_second", "max_task_queue_activities_per_second")
OWN_OPTIONS = {
    "grace_seconds": "Worker(graceful_shutdown_timeout=…)",
    "max_cached_workflows": "Worker(max_cached_workflows=…)",
    "max_concurrent_activities": "Worker(max_concurrent_activities=…)",
    "max_concurrent_workflow_tasks": "Worker(max_concurrent_workflow_tasks=…)",
    "max_activities_per_second": "Worker(max_activities_per_second=…)",
    "max_task_queue_activities_per_second": "Worker(max_task_queue_activities_per_second=…)",
    "health_address": "a check of your own that awaits MulliganPlugin.unready()",
}
"""The settings of `mulligan worker` that have no effect on a worker that somebody else makes, and what has it there."""


class PluginWorker:
    """Mulligan's parts of one worker.

    Args:
        loaded: what the worker serves.
        config: the configuration of the worker, which is changed.
        folder: the agents that are files.
    """

    def __init__(self, loaded: LoadedModules, config: WorkerConfig, folder: AgentFolder | None = None) -> None:
        chosen, queue = settings(), config["task_queue"]
        for line in (*_warnings(config, chosen), *check_endpoints(loaded.registry, chosen.endpoints)):
            say(f"warning: {line}")
        types = frozenset(workflow_definition(each).name for each in WORKFLOWS) | ACTIVITY_TYPES
        shorten_failures(types, is_encrypted=chosen.is_encrypted)
        self.group: WorkerGroup | None = None
        """The workers while they run."""
        self._client: Client | None = None
        self._folder = folder
        self._telemetry, self._features = Telemetry(), LoadedFeatures(loaded)
        self._served = (
            None
            if _is_versioned(config)
            else served_agents(loaded, queue, names_in_folder(str(folder.path)) if folder else ())
        )
        if self._served is not None:
            # Other workers read the tag from the queue's pollers: see client/served_agents.py.
            config["identity"] = f"{config.get('identity') or config['client'].identity}{self._served.tag}"
        self._slots = ActivitySlots(config.get("max_concurrent_activities") or ACTIVITIES)
        self._model_limits = model_limits(chosen, self._slots.number) if chosen.limits_model_calls else None
        self._cache = WorkflowCache(config.get("max_cached_workflows", CACHED_WORKFLOWS))
        models = f"{queue}{MODELS_SUFFIX}" if self._model_limits else None
        self._live = live_publisher()
        self._activities = AgentActivities(loaded, self._telemetry, models, self._served, live=self._live)
        with_agents(config, loaded, self._activities.all, self._cache, live=self._live)
        config["interceptors"] = [*config["interceptors"], self._slots]
        if config.get("sticky_queue_schedule_to_start_timeout") == SDK_STICKY_TIMEOUT:
            config["sticky_queue_schedule_to_start_timeout"] = STICKY_TIMEOUT
        if any(config.get(each) for each in _LIMITS):
            # Eager activities bypass the task queue, which applies the rate limit.
            config["disable_eager_activity_execution"] = True

    async def run(self, worker: Worker, run_worker: Callable[[Worker], Awaitable[None]]) -> None:
        """Open what agents need, run the worker and those beside it, and close it.

        Raises:
            WorkerStoppedError: a worker beside it stopped by itself, or functions that hang left no thread.
        """
        config = worker.config(active_config=True)
        apply_workarounds(worker, self._cache, say)
        grace = config["graceful_shutdown_timeout"].total_seconds()
        self.group = WorkerGroup(say, grace + SECONDS_AFTER_GRACE)
        self._activities.stop_without_threads(self.group)
        if self._folder is not None:
            await self._folder.load()
        try:
            async with self._activities.opened() as activities, publishing(self._live):
                client_config = config["client"].config(active_config=True)
                # The plugins of the client have configured the first worker already.
                client = self._client = Client(**(client_config | {"plugins": []}))
                beside, their_monitors = self._beside(client, config, activities, self.group)
                monitors = [*self._monitors(client, config), *their_monitors]
                served = self._served if self._served and self._served.tag else None
                watched = self._folder.watched() if self._folder is not None else nullcontext()
                async with watched, warning_of_other_agents(client, served):
                    await _serve(worker, run_worker, beside, monitors, self.group)
        finally:
            self.group = None
            await asyncio.to_thread(self._telemetry.shutdown)

    async def unready(self) -> str:
        """Why the workers serve nothing, or not everything that they should; "" while they serve."""
        if self.group is None or self._client is None:
            return "starting"
        return self.group.unready or await connection_error(self._client)

    def _beside(
        self, client: Client, config: WorkerConfig, activities: Sequence[Callable[..., Any]], group: WorkerGroup
    ) -> tuple[list[Worker], list[PollMonitor]]:
        """The workers for declined activities, and for model calls with limits of their own."""
        set_options: dict[str, Any] = {key: value for key, value in config.items() if value is not None}
        common = {key: set_options[key] for key in _OPTIONS_OF_ALL if key in set_options}
        limits = {key: set_options.get(key) for key in _LIMITS} | {"max_concurrent_activities": self._slots.number}
        of_models = (self._features.model_calls, common | self._model_limits) if self._model_limits else None
        queues = queues_beside(config["task_queue"], self._served, activities, common | limits | FEW_POLLS, of_models)
        replaced = (ActivityLogFields, ActivitySlots)
        interceptors = [each for each in config["interceptors"] if not isinstance(each, replaced)]
        return activity_workers(client, queues, interceptors, group)

    def _monitors(self, client: Client, config: WorkerConfig) -> Iterator[PollMonitor]:
        """What watches the polls of the first worker. With a tuner, nobody knows whether its slots are all in use."""
        queue, identity = config["task_queue"], config.get("identity")
        if config.get("tuner") is None:
            yield PollMonitor(client, queue, "workflow", say, identity=identity)
            if not config.get("no_remote_activities"):
                yield activity_monitor(
                    client, queue, say, self._slots, config.get("max_activities_per_second"), identity
                )


async def _serve(
    worker: Worker,
    run_worker: Callable[[Worker], Awaitable[None]],
    beside: Sequence[Worker],
    monitors: Sequence[PollMonitor],
    group: WorkerGroup,
) -> None:
    """Run all workers. They start to drain when the first one is told to. If the group fails, the first one drains too."""
    serving = asyncio.ensure_future(run_worker(worker))
    stopping = asyncio.create_task(until_shutdown(worker))
    try:
        async with group.running(beside, monitors):
            try:
                await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                serving.cancel()
                raise
    finally:
        stopping.cancel()
        await asyncio.wait({serving})
    await serving


def _is_versioned(config: WorkerConfig) -> bool:
    """Whether Worker Versioning is on: then a run's activities are for workers of its own build."""
    deployment = config.get("deployment_config")
    return bool(config.get("use_worker_versioning") or (deployment and deployment.use_worker_versioning))


def _warnings(config: WorkerConfig, chosen: Settings) -> Iterator[str]:
    """What the options of the worker, and the settings that it does not read, do to the runs."""
    if not config.get("graceful_shutdown_timeout"):
        yield (
            f"the worker of task queue {config['task_queue']!r} has no graceful_shutdown_timeout, so a deploy cancels the "
            "tool and model calls that are running; give it one: Worker(…, "
            "graceful_shutdown_timeout=timedelta(seconds=30))."
        )
    for name, argument in OWN_OPTIONS.items():
        if name in chosen.model_fields_set:
            yield f"MULLIGAN_{name.upper()} has no effect on a worker with MulliganPlugin; use {argument}."
