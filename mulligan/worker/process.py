"""The process of `mulligan worker`: load the agents, connect, serve until a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta

from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError

from mulligan.client.connect import check_namespace, connect, explain_connection_error
from mulligan.client.settings import settings
from mulligan.errors import DeclarationError
from mulligan.observe.metrics import temporal_runtime
from mulligan.observe.telemetry import Telemetry
from mulligan.worker.group import WorkerGroup, WorkerStoppedError
from mulligan.worker.health import health_server
from mulligan.worker.loading import load, modules_to_load
from mulligan.worker.logs import say, set_up_logging
from mulligan.worker.wiring import running_worker

__all__ = ["main", "serve"]


def main(modules: Sequence[str], task_queue: str | None, *, with_shipped: bool = False) -> int:
    """Serve the agents of the modules until SIGTERM or Ctrl-C; the shipped agents if no module is named.

    Args:
        modules: the values of `--load`. The modules of `MULLIGAN_LOAD` are loaded first.
        task_queue: the task queue; that of `MULLIGAN_TASK_QUEUE` if None.
        with_shipped: whether to serve the shipped agents beside those of the modules.

    Returns:
        The exit code: 0; 1 if Temporal's worker stopped because of an error; 2 if it could not start. The reason is on
        stderr, in one line.
    """
    try:
        chosen = settings()
        set_up_logging(chosen.log_format)
        loaded_modules = modules_to_load(chosen.load, modules, with_shipped=with_shipped)
        asyncio.run(serve(loaded_modules, task_queue or chosen.task_queue))
    except DeclarationError as error:
        say(f"error: {error}")
        return 2
    except WorkerStoppedError:
        # The worker group has logged the reason.
        return 1
    except RuntimeError as error:
        if "connect" not in str(error).lower():
            raise
        say(f"error: {explain_connection_error(error)}")
        return 2
    return 0


async def serve(modules: Sequence[str], task_queue: str) -> None:
    """Serve until SIGTERM or Ctrl-C, then wait for running calls, at most for the grace time.

    Raises:
        DeclarationError: a loaded module or a setting is invalid, or the namespace does not exist.
        RuntimeError: no Temporal server answers.
        WorkerStoppedError: Temporal's worker stopped because of an error, which has been logged.
    """
    loaded = load(modules)
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    telemetry = Telemetry()
    stop = asyncio.Event()
    client: Client | None = None
    group: WorkerGroup | None = None

    async def unready() -> str:
        if client is None or group is None or stop.is_set():
            return "draining" if stop.is_set() else "starting"
        return group.unready or await _connection_error(client)

    try:
        async with AsyncExitStack() as stack:
            if health_address := settings().health_address:
                bound_address = await stack.enter_async_context(health_server(health_address, unready))
                say(f"Health checks at http://{bound_address}/readyz")
            # Before connecting: process 1 of a container ignores signals without a handler.
            for sign in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(sign, stop.set)
            client = await connect(runtime=temporal_runtime())
            await check_namespace(client)
            async with running_worker(client, loaded, telemetry, task_queue) as group:
                agents = ", ".join(sorted(loaded.registry.agents))
                address = client.service_client.config.target_host
                say(
                    f"Serving {agents} on task queue {task_queue!r} at {address}. Ctrl-C stops the worker after its "
                    "running calls."
                )
                if build := settings().build_id:
                    say(f"Build {build} of {settings().deployment_name}: it gets runs when it is the current version.")
                await stop.wait()
                say("Draining: running calls may finish; no new ones are started.")
    finally:
        # Export the last spans.
        await asyncio.to_thread(telemetry.shutdown)


async def _connection_error(client: Client) -> str:
    """Why the server cannot be reached. Empty if it answers."""
    try:
        await client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=timedelta(seconds=2), retry=False)
    except RPCError as error:
        return f"Temporal does not answer: {error.status.name}"
    return ""
