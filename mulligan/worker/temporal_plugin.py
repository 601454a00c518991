"""A Temporal plugin that adds Mulligan to an existing client and worker."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from os import PathLike
from weakref import WeakKeyDictionary

from temporalio.client import ClientConfig, WorkflowHistory
from temporalio.client import Plugin as ClientPlugin
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter, DefaultPayloadConverter
from temporalio.runtime import Runtime
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
from mulligan.client.settings import settings
from mulligan.client.start_interceptor import StartInterceptor
from mulligan.errors import DeclarationError
from mulligan.observe.metrics import temporal_runtime
from mulligan.script import Script
from mulligan.worker.agent_folder import agent_folder, names_in_folder
from mulligan.worker.loading import LoadedModules, load
from mulligan.worker.logs import say, set_up_logging
from mulligan.worker.plugin_worker import PluginWorker
from mulligan.worker.sdk_workarounds.workaround_runner import WorkaroundRunner
from mulligan.worker.wiring import (
    WORKFLOWS,
    LoadedFeatures,
    with_passthrough,
    without_duplicates,
)


class MulliganPlugin(ClientPlugin, WorkerPlugin):
    """Serves agents on an existing worker, beside its own workflows and activities.

    ```python
    client = await Client.connect("localhost:7233", plugins=[MulliganPlugin(agents=[support])])
    worker = Worker(
        client,
        task_queue="shop",
        workflows=[TheirWorkflow],
        activities=[their_activity],
        graceful_shutdown_timeout=timedelta(seconds=30),
    )
    ```

    Give it to the client, and each worker of that client has it. `Replayer(plugins=[…])` takes it as well. It adds the
    workflow and activities that run agents, Mulligan's data converter, and the modules that must pass through Temporal's
    sandbox. It opens the modules' `resources()`, MCP servers and telemetry with the worker, and closes them with it. A
    payload codec, failure converter, external storage and interceptors that are already set are kept.

    Args:
        agents: the agents to serve; or a folder of agents that are files, which is served as its files are at any time
            (docs/agent-files.md). Without either, the folder of `MULLIGAN_AGENTS`, if it is set.
        load: the dotted names of modules whose agents, scripts, workflows and activities are parts.
        scripts: scripted models, for agents that use `scripted:NAME`.

    Raises:
        DeclarationError: the agents cannot be served together, or a module cannot be loaded. When a client or worker is
            created: its payload converter may not support Mulligan's values, or it has a MulliganPlugin already.
    """

    def __init__(
        self,
        agents: Iterable[Agent] | str | PathLike[str] = (),
        load: Iterable[str] = (),
        scripts: Iterable[Script] = (),
    ) -> None:
        path = os.fspath(agents) if isinstance(agents, str | PathLike) else None
        self._loaded = _load(load, () if isinstance(agents, str | PathLike) else agents, scripts, names_in_folder(path))
        self._folder = agent_folder(path, self._loaded.registry, say)
        self._workers: WeakKeyDictionary[WorkflowRunner, PluginWorker] = WeakKeyDictionary()
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
        worker = PluginWorker(self._loaded, config, self._folder)
        self._workers[config["workflow_runner"]] = worker
        return config

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:  # noqa: A002 - Temporal's name
        """Open what agents need, run the worker, and close it."""
        await self._workers[worker.config(active_config=True)["workflow_runner"]].run(worker, next)

    async def unready(self) -> str:
        """Say why a worker of this plugin serves nothing, or not everything that it should; "" while all serve.

        For a readiness check: a worker that drains is not ready, nor is one whose server does not answer within 2 s. It
        counts from when it runs until it has ended.
        """
        running = [each for each in self._workers.values() if each.group is not None]
        reasons = await asyncio.gather(*(each.unready() for each in running))
        return "; ".join(dict.fromkeys(filter(None, reasons))) if running else "no worker runs"

    @staticmethod
    def set_up_logging() -> None:
        """Write this process's log to stderr as `mulligan worker` does, by `MULLIGAN_LOG_FORMAT`.

        Each line of a run has the run's ids, agent and tool; lines are escaped and limited; and where payloads are
        encrypted, the texts of exceptions are left out. Handlers that the root logger has already are kept, with these
        filters. Call it once, before the worker starts.
        """
        chosen = settings()
        set_up_logging(chosen.log_format, is_encrypted=chosen.is_encrypted)

    @staticmethod
    def runtime() -> Runtime:
        """Return a runtime for `Client.connect(runtime=…)`, with which the SDK's core reports as in `mulligan worker`.

        Its log lines go to Python's logger `temporalio.core`. Temporal's own metrics, which the dashboard shows, are
        exported where `OTEL_EXPORTER_OTLP_ENDPOINT` says. Create one for each process, and keep it for all its clients.
        """
        return temporal_runtime()

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


def _load(
    modules: Iterable[str], agents: Iterable[Agent], scripts: Iterable[Script], file_names: Iterable[str]
) -> LoadedModules:
    if isinstance(modules, str):
        raise DeclarationError(f"load={modules!r} is a text; give a list of modules: load=[{modules!r}].")
    return load(modules, agents=agents, scripts=scripts, file_names=file_names)


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
