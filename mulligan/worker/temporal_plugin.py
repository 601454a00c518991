"""Mulligan for a Temporal client and worker that somebody already has."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from weakref import WeakKeyDictionary

from temporalio.client import ClientConfig, WorkflowHistory
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
from mulligan.client.connect import TraceHeader, configured_converter
from mulligan.client.converter import PayloadConverter
from mulligan.errors import DeclarationError
from mulligan.observe.telemetry import Telemetry
from mulligan.script import Script
from mulligan.worker.loading import LoadedModules, load
from mulligan.worker.recorded_state import RecordedStateRunner
from mulligan.worker.wiring import CACHED_WORKFLOWS, AgentActivities, passing, together, with_agents
from mulligan.worker.workflow_cache import WorkflowCache
from mulligan.workflows.agent_workflow import AgentWorkflow

__all__ = ["MulliganPlugin"]


class MulliganPlugin(ClientPlugin, WorkerPlugin):
    """Serves agents beside what a worker serves already.

    ```python
    client = await Client.connect("localhost:7233", plugins=[MulliganPlugin(agents=[support])])
    worker = Worker(client, task_queue="shop", workflows=[TheirWorkflow], activities=[their_activity])
    ```

    Give it to the client: each worker of that client has it then. `Replayer(plugins=[…])` takes it as well. It adds the
    workflow and the activities that run agents, Mulligan's data converter, and what Temporal's sandbox must let pass; it
    opens the modules' `resources()`, MCP servers and telemetry with the worker, and closes them with it. Payload codec,
    failure converter, external storage and interceptors that are set already are kept.

    Args:
        agents: the agents to serve.
        load: modules whose agents, scripts, workflows and activities are served, by their dotted names.
        scripts: the models `scripted:NAME`, for agents that ask them.

    Raises:
        DeclarationError: they cannot be served together, or a module cannot be loaded; when a client or a worker is made,
            that its payload converter cannot carry Mulligan's values.
    """

    def __init__(self, agents: Iterable[Agent] = (), load: Iterable[str] = (), scripts: Iterable[Script] = ()) -> None:
        self._loaded = _load(load, agents, scripts)
        self._workers: WeakKeyDictionary[WorkflowRunner, _Served] = WeakKeyDictionary()
        """Of each worker that was configured, by its workflow runner, which is its own."""

    def configure_client(self, config: ClientConfig) -> ClientConfig:
        """Add the data converter, and hand the caller's trace to runs that are started."""
        config["data_converter"] = _converter(config["data_converter"])
        if not any(isinstance(each, TraceHeader) for each in config["interceptors"]):
            config["interceptors"] = [*config["interceptors"], TraceHeader()]
        return config

    async def connect_service_client(
        self,
        config: ConnectConfig,
        next: Callable[[ConnectConfig], Awaitable[ServiceClient]],  # noqa: A002 - Temporal's name
    ) -> ServiceClient:
        """The connection stays as it is."""
        return await next(config)

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Add workflows and activities, and what they need of the worker."""
        if isinstance(config.get("workflow_runner"), RecordedStateRunner):
            raise DeclarationError(
                "this worker has a MulliganPlugin already, its own or its client's; give one plugin all agents and modules."
            )
        telemetry = Telemetry()
        cache = WorkflowCache(config.get("max_cached_workflows", CACHED_WORKFLOWS))
        activities = AgentActivities(self._loaded, telemetry)
        config = with_agents(config, self._loaded, activities.all, cache)
        self._workers[config["workflow_runner"]] = _Served(activities, cache, telemetry)
        return config

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:  # noqa: A002 - Temporal's name
        """Open what agents need, run the worker, and close it."""
        served = self._workers[worker.config(active_config=True)["workflow_runner"]]
        served.cache.attach(worker)
        try:
            async with served.activities.opened():
                await next(worker)
        finally:
            await asyncio.to_thread(served.telemetry.shutdown)

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """Add workflows and the data converter."""
        config["data_converter"] = _converter(config.get("data_converter") or DataConverter.default)
        config["workflows"] = together(config.get("workflows"), [AgentWorkflow, *self._loaded.workflows])
        config["workflow_runner"] = passing(config.get("workflow_runner"), self._loaded)
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
        """A replay needs nothing to be open."""
        return next(replayer, histories)


@dataclasses.dataclass
class _Served:
    """What one worker has of ours."""

    activities: AgentActivities
    cache: WorkflowCache
    telemetry: Telemetry


def _load(modules: Iterable[str], agents: Iterable[Agent], scripts: Iterable[Script]) -> LoadedModules:
    if isinstance(modules, str):
        raise DeclarationError(f"load={modules!r} is one text; give a list of modules: load=[{modules!r}].")
    return load(modules, agents=agents, scripts=scripts, shipped=())


def _converter(theirs: DataConverter) -> DataConverter:
    """Mulligan's payload converter in their data converter; what they have not set is as the environment says.

    Raises:
        DeclarationError: their payload converter is one of their own, that may not carry our values.
    """
    kind = theirs.payload_converter_class
    if not issubclass(kind, PayloadConverter) and kind not in (DefaultPayloadConverter, PydanticPayloadConverter):
        raise DeclarationError(
            f"the client's payload converter {kind.__module__}.{kind.__qualname__} may not carry Mulligan's values, which "
            "are pydantic models as JSON; derive it from mulligan.data_converter.payload_converter_class, or leave it out."
        )
    ours = configured_converter()
    return dataclasses.replace(
        theirs,
        payload_converter_class=kind if issubclass(kind, PayloadConverter) else ours.payload_converter_class,
        payload_codec=theirs.payload_codec or ours.payload_codec,
        failure_converter_class=theirs.failure_converter_class
        if theirs.failure_converter_class is not DataConverter.default.failure_converter_class
        else ours.failure_converter_class,
        external_storage=theirs.external_storage or ours.external_storage,
    )
