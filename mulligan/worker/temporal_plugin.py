"""A Temporal plugin that adds Mulligan to an existing client and worker."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any
from weakref import WeakKeyDictionary

from temporalio.client import Client, ClientConfig, WorkflowHistory
from temporalio.client import Plugin as ClientPlugin
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter, DefaultPayloadConverter
from temporalio.service import ConnectConfig, ServiceClient
from temporalio.worker import Plugin as WorkerPlugin
from temporalio.worker import (
    Replayer,
    ReplayerConfig,
    Worker,
    WorkerConfig,
    WorkflowReplayResult,
    WorkflowRunner,
)

from mulligan.agent import Agent
from mulligan.client.connect import configured_converter
from mulligan.client.converter import PayloadConverter
from mulligan.client.served_agents import ServedAgents
from mulligan.client.settings import settings
from mulligan.client.start_interceptor import StartInterceptor
from mulligan.errors import DeclarationError
from mulligan.observe.telemetry import Telemetry
from mulligan.script import Script
from mulligan.worker.all_endpoints import check_endpoints
from mulligan.worker.group import WorkerGroup
from mulligan.worker.loading import LoadedModules, load
from mulligan.worker.logs import ActivityLogFields, say
from mulligan.worker.options import FEW_POLLS
from mulligan.worker.other_agents import served_agents, warning_of_other_agents
from mulligan.worker.poll_monitor import ActivitySlots, activity_monitor
from mulligan.worker.sdk_workarounds.until_shutdown import until_shutdown
from mulligan.worker.sdk_workarounds.workaround_runner import WorkaroundRunner, apply_workarounds
from mulligan.worker.sdk_workarounds.workflow_cache import WorkflowCache
from mulligan.worker.wiring import (
    ACTIVITIES,
    CACHED_WORKFLOWS,
    SECONDS_AFTER_GRACE,
    WORKFLOWS,
    AgentActivities,
    LoadedFeatures,
    activity_worker,
    with_agents,
    with_passthrough,
    without_duplicates,
)

_SHARED_OPTIONS = (
    "default_heartbeat_throttle_interval",
    "graceful_shutdown_timeout",
    "max_activities_per_second",
    "max_concurrent_activities",
    "max_heartbeat_throttle_interval",
    "max_task_queue_activities_per_second",
)
"""The options of a worker that its second one has as well."""


class MulliganPlugin(ClientPlugin, WorkerPlugin):
    """Serves agents on an existing worker, beside its own workflows and activities.

    ```python
    client = await Client.connect("localhost:7233", plugins=[MulliganPlugin(agents=[support])])
    worker = Worker(client, task_queue="shop", workflows=[TheirWorkflow], activities=[their_activity])
    ```

    Give it to the client, and each worker of that client has it. `Replayer(plugins=[…])` takes it as well. It adds the
    workflow and activities that run agents, Mulligan's data converter, and the modules that must pass through Temporal's
    sandbox. It opens the modules' `resources()`, MCP servers and telemetry with the worker, and closes them with it. A
    payload codec, failure converter, external storage and interceptors that are already set are kept.

    Args:
        agents: the agents to serve.
        load: the dotted names of modules whose agents, scripts, workflows and activities are parts.
        scripts: scripted models, for agents that use `scripted:NAME`.

    Raises:
        DeclarationError: the agents cannot be served together, or a module cannot be loaded. When a client or worker is
            created: its payload converter may not support Mulligan's values, or it has a MulliganPlugin already.
    """

    def __init__(self, agents: Iterable[Agent] = (), load: Iterable[str] = (), scripts: Iterable[Script] = ()) -> None:
        self._loaded = _load(load, agents, scripts)
        self._workers: WeakKeyDictionary[WorkflowRunner, _WorkerParts] = WeakKeyDictionary()
        """The parts of each configured worker, by its workflow runner, which no other worker has."""

    def configure_client(self, config: ClientConfig) -> ClientConfig:
        """Add the data converter, and the interceptor that gives new runs the caller's trace and a summary."""
        config["data_converter"] = _add_converter(config["data_converter"])
        if not any(isinstance(each, StartInterceptor) for each in config["interceptors"]):
            config["interceptors"] = [*config["interceptors"], StartInterceptor()]
        return config

    async def connect_service_client(
        self,
        config: ConnectConfig,
        next: Callable[[ConnectConfig], Awaitable[ServiceClient]],  # noqa: A002 - Temporal's name
    ) -> ServiceClient:
        """Connect without any change."""
        return await next(config)

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Add workflows and activities, and the worker options that they need."""
        if isinstance(config.get("workflow_runner"), WorkaroundRunner):
            raise DeclarationError(
                "this worker has a MulliganPlugin already, its own or its client's; give all agents and modules to "
                "one plugin."
            )
        served = None if _is_versioned(config) else served_agents(self._loaded, config["task_queue"])
        if served is not None:
            # Other workers read the tag from the queue's pollers: see client/served_agents.py.
            config["identity"] = f"{config.get('identity') or config['client'].identity}{served.tag}"
        telemetry = Telemetry()
        cache = WorkflowCache(config.get("max_cached_workflows", CACHED_WORKFLOWS))
        for warning in check_endpoints(self._loaded.registry, settings().endpoints):
            say(f"warning: {warning}")
        activities = AgentActivities(self._loaded, telemetry, served=served)
        config = with_agents(config, self._loaded, activities.all, cache)
        self._workers[config["workflow_runner"]] = _WorkerParts(activities, cache, telemetry, served)
        return config

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:  # noqa: A002 - Temporal's name
        """Open what agents need, run the worker, and close it."""
        parts = self._workers[worker.config(active_config=True)["workflow_runner"]]
        apply_workarounds(worker, parts.cache, say)
        grace = worker.config(active_config=True)["graceful_shutdown_timeout"].total_seconds()
        group = WorkerGroup(say, grace + SECONDS_AFTER_GRACE)
        parts.activities.stop_without_threads(group)
        try:
            async with parts.activities.opened() as activities:
                if parts.served is None or not parts.served.tag:
                    async with group.running([]):
                        await next(worker)
                else:
                    await _serve_both(worker, next, activities, parts.served, group)
        finally:
            await asyncio.to_thread(parts.telemetry.shutdown)

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """Add workflows and the data converter."""
        config["data_converter"] = _add_converter(config.get("data_converter") or DataConverter.default)
        features = LoadedFeatures(self._loaded)
        workflows = [*WORKFLOWS, *features.workflows, *self._loaded.workflows]
        config["workflows"] = without_duplicates(config.get("workflows"), workflows)
        config["interceptors"] = [*(config.get("interceptors") or ()), features]
        config["workflow_runner"] = with_passthrough(config.get("workflow_runner"), self._loaded)
        return config

    def run_replayer(
        self,
        replayer: Replayer,
        histories: AsyncIterator[WorkflowHistory],
        next: Callable[  # noqa: A002 - Temporal's name
            [Replayer, AsyncIterator[WorkflowHistory]],
            AbstractAsyncContextManager[AsyncIterator[WorkflowReplayResult]],
        ],
    ) -> AbstractAsyncContextManager[AsyncIterator[WorkflowReplayResult]]:
        """Run the replay unchanged: it needs no open resources."""
        return next(replayer, histories)


@dataclasses.dataclass
class _WorkerParts:
    """Mulligan's parts of one worker."""

    activities: AgentActivities
    cache: WorkflowCache
    telemetry: Telemetry
    served: ServedAgents | None
    """The worker's task queue and agents; None if it is versioned, as its runs stay on workers of one build."""


async def _serve_both(
    worker: Worker,
    run_worker: Callable[[Worker], Awaitable[None]],
    activities: Sequence[Callable[..., Any]],
    served: ServedAgents,
    group: WorkerGroup,
) -> None:
    """Run the worker, and one for the activities that workers with other agents have declined.

    Both start to drain when the first one is told to. If the group fails, the first one drains, and its run fails.

    Raises:
        WorkerStoppedError: the second worker stopped by itself, or functions that hang left no thread.
    """
    config = worker.config(active_config=True)
    client_config = config["client"].config(active_config=True)
    # The plugins of the client have configured the first worker already.
    client_config["plugins"] = []
    client = Client(**client_config)
    options: dict[str, Any] = {key: config[key] for key in _SHARED_OPTIONS if config.get(key) is not None}  # type: ignore[literal-required]
    slots = ActivitySlots(options.setdefault("max_concurrent_activities", ACTIVITIES))
    interceptors = [each for each in config["interceptors"] if not isinstance(each, ActivityLogFields)]
    second = activity_worker(
        client, served.queue, activities, options | FEW_POLLS, interceptors=[*interceptors, slots], group=group
    )
    monitor = activity_monitor(client, served.queue, say, slots, options.get("max_activities_per_second"))
    serving = asyncio.ensure_future(run_worker(worker))
    stopping = asyncio.create_task(until_shutdown(worker))
    try:
        async with group.running([second], [monitor]), warning_of_other_agents(client, served):
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


def _load(modules: Iterable[str], agents: Iterable[Agent], scripts: Iterable[Script]) -> LoadedModules:
    if isinstance(modules, str):
        raise DeclarationError(f"load={modules!r} is a text; give a list of modules: load=[{modules!r}].")
    return load(modules, agents=agents, scripts=scripts)


def _add_converter(existing: DataConverter) -> DataConverter:
    """The existing data converter with Mulligan's payload converter. Parts that are not set come from the environment.

    Raises:
        DeclarationError: it has a custom payload converter, which may not support Mulligan's values.
    """
    kind = existing.payload_converter_class
    if not issubclass(kind, PayloadConverter) and kind not in (DefaultPayloadConverter, PydanticPayloadConverter):
        raise DeclarationError(
            f"the client's payload converter {kind.__module__}.{kind.__qualname__} may not support Mulligan's values, "
            "which are pydantic models as JSON; derive it from mulligan.data_converter.payload_converter_class, or "
            "remove it."
        )
    configured = configured_converter()
    return dataclasses.replace(
        existing,
        payload_converter_class=kind if issubclass(kind, PayloadConverter) else configured.payload_converter_class,
        payload_codec=existing.payload_codec or configured.payload_codec,
        failure_converter_class=existing.failure_converter_class
        if existing.failure_converter_class is not DataConverter.default.failure_converter_class
        else configured.failure_converter_class,
        external_storage=existing.external_storage or configured.external_storage,
    )
