"""The process of `mulligan worker`: load the agents, connect, serve until a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client

from mulligan.activities.models.available_providers import import_sdks
from mulligan.client.connect import CannotConnectError, check_namespace, connect, explain_connection_error
from mulligan.client.live_channel import live_folder
from mulligan.client.settings import settings
from mulligan.errors import DeclarationError
from mulligan.observe import otlp
from mulligan.observe.forwarded_spans import ForwardedSpans
from mulligan.observe.metrics import temporal_runtime
from mulligan.observe.telemetry import Telemetry
from mulligan.worker.agent_folder import AgentFolder, agent_folder, names_in_folder
from mulligan.worker.all_endpoints import check_endpoints
from mulligan.worker.connection_error import connection_error
from mulligan.worker.group import WorkerGroup, WorkerStoppedError
from mulligan.worker.health import health_server
from mulligan.worker.loading import load, modules_to_load
from mulligan.worker.logs import say, set_up_logging
from mulligan.worker.supervisor_link import Kind, SupervisorLink
from mulligan.worker.wiring import running_worker

SECONDS_BETWEEN_STATES = 1.0
"""Between two reports of a supervised process to its supervisor."""
SECONDS_TO_HAND_OVER = 5.0
"""How long a process serves on when its supervisor has died: about as long as another one and its processes import."""


def main(
    modules: Sequence[str], task_queue: str | None, *, with_shipped: bool = False, agents: str | None = None
) -> int:
    """Serve the agents of the modules until SIGTERM or Ctrl-C; the shipped agents if no module is named.

    Args:
        modules: the values of `--load`. The modules of `MULLIGAN_LOAD` are loaded first.
        task_queue: the task queue; that of `MULLIGAN_TASK_QUEUE` if None.
        with_shipped: whether to serve the shipped agents beside those of the modules.
        agents: the folder of agents that are files; that of `MULLIGAN_AGENTS` if None.

    Returns:
        The exit code: 0; 1 if Temporal's worker stopped because of an error; 2 if it could not start. The reason is on
        stderr, in one line.
    """
    try:
        chosen = settings()
        set_up_logging(chosen.log_format, is_encrypted=chosen.is_encrypted)
        loaded_modules = modules_to_load(chosen.load, modules, with_shipped=with_shipped)
        asyncio.run(serve(loaded_modules, task_queue or chosen.task_queue, agents))
    except DeclarationError as error:
        say(f"error: {error}")
        return 2
    except WorkerStoppedError:
        # The worker group has logged the reason.
        return 1
    except CannotConnectError as error:
        say(f"error: {explain_connection_error(error)}")
        return 2
    return 0


async def serve(modules: Sequence[str], task_queue: str, agents: str | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C, then wait for running calls, at most for the grace time.

    `agents`: the folder of agents that are files; that of the settings if None.

    A process of a supervisor also stops when its supervisor dies.

    Raises:
        DeclarationError: a loaded module or a setting is invalid, or the namespace does not exist.
        CannotConnectError: no Temporal server answers.
        WorkerStoppedError: Temporal's worker stopped because of an error, which has been logged.
    """
    link = SupervisorLink.from_environment()
    announce = say if link is None or link.is_first else _say_nothing
    loaded = load(modules, file_names=names_in_folder(agents))
    folder = agent_folder(agents, loaded.registry, say if link is None else _say_nothing)  # a supervisor says it
    if folder is not None:
        await folder.load()
    for warning in loaded.warnings:
        announce(f"warning: {warning}")
    missing = check_endpoints(loaded.registry, settings().endpoints)
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        telemetry = await stack.enter_async_context(_telemetry(link, stop))
        health = await stack.enter_async_context(_health(link, stop, folder))
        # Before connecting: process 1 of a container ignores signals without a handler.
        for sign in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(sign, stop.set)
        client = await connect(runtime=temporal_runtime())
        await check_namespace(client)
        if link is not None:
            # A process that replaces another one takes over its runs at once, and the first request should not wait.
            models = [model for agent in loaded.registry.agents.values() for model in agent.models]
            await asyncio.to_thread(import_sdks, models)
            link.send(Kind.HELLO, body={"identity": client.service_client.config.identity})
        async with running_worker(client, loaded, telemetry, task_queue, link) as group:
            health.client, health.group = client, group
            health.changed.set()
            if folder is not None:
                await stack.enter_async_context(folder.watched())
            names = ", ".join(sorted(loaded.registry.agents)) or "no agents"
            address = client.service_client.config.target_host
            announce(
                f"Serving {names} on task queue {task_queue!r} at {address}. Ctrl-C stops the worker after its "
                "running calls."
            )
            if (folder_of_sockets := live_folder()) is not None:
                announce(f"Live text goes by sockets in {folder_of_sockets}, beside heartbeats.")
            if build := settings().build_id:
                announce(f"Build {build} of {settings().deployment_name}: it gets runs when it is the current version.")
            for warning in missing:
                announce(f"warning: {warning}")
            await stop.wait()
            announce("Draining: running calls may finish; no new ones are started.")


@asynccontextmanager
async def _telemetry(link: SupervisorLink | None, stop: asyncio.Event) -> AsyncIterator[Telemetry]:
    """The telemetry of this process, which exports the last spans at the end; opens and closes the link."""
    forwarded = None
    if link is not None:
        link.open()

        def send(number: int, span: dict[str, Any]) -> None:
            link.send(Kind.SPAN, link.attempt, {"number": number, "span": span})

        if otlp.is_configured():
            forwarded = ForwardedSpans(send)
            link.on_acknowledged = forwarded.acknowledge
            link.on_lost.append(forwarded.export_here)

        def hand_over() -> None:
            if not stop.is_set():
                say(
                    f"The supervisor has died: this worker serves for {SECONDS_TO_HAND_OVER:g} s more, drains, and ends."
                )
                asyncio.get_running_loop().call_later(SECONDS_TO_HAND_OVER, stop.set)

        link.on_lost.append(hand_over)
    telemetry = Telemetry(forwarded=forwarded)
    try:
        yield telemetry
    finally:
        await asyncio.to_thread(telemetry.shutdown)
        if link is not None:
            link.close()


@dataclass
class _Health:
    """What readiness depends on."""

    stop: asyncio.Event
    folder: AgentFolder | None = None
    client: Client | None = None
    group: WorkerGroup | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it begins to serve: the supervisor is told at once."""

    def notes(self) -> list[str]:
        """What is wrong while this process serves."""
        return list(self.folder.problems) if self.folder is not None else []

    async def unready(self) -> str:
        """Why this process serves nothing; "" while it serves."""
        if self.client is None or self.group is None or self.stop.is_set():
            return "draining" if self.stop.is_set() else "starting"
        return self.group.unready or await connection_error(self.client)


@asynccontextmanager
async def _health(
    link: SupervisorLink | None, stop: asyncio.Event, folder: AgentFolder | None
) -> AsyncIterator[_Health]:
    """Serve health checks if they are configured; a supervised process tells its supervisor instead."""
    health = _Health(stop, folder)
    if link is None:
        async with AsyncExitStack() as stack:
            if health_address := settings().health_address:
                bound_address = await stack.enter_async_context(
                    health_server(health_address, health.unready, health.notes)
                )
                say(f"Health checks at http://{bound_address}/readyz")
            yield health
        return

    async def report() -> None:
        while True:
            retires = health.group is not None and health.group.failure is not None
            state = {"unready": await health.unready(), "retires": retires, "notes": health.notes()}
            link.send(Kind.STATE, body=state)
            with suppress(TimeoutError):
                await asyncio.wait_for(health.changed.wait(), SECONDS_BETWEEN_STATES)
            health.changed.clear()

    reporting = asyncio.create_task(report())
    try:
        yield health
    finally:
        reporting.cancel()


def _say_nothing(line: str) -> None:
    """Drop a line: the first process of a supervisor prints it for all."""
