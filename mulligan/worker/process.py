"""A worker's process: connect, load the agents, serve until told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta

from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError

from mulligan.client.connect import connect, explain_connection_error
from mulligan.client.settings import settings
from mulligan.errors import DeclarationError
from mulligan.observe.metrics import temporal_runtime
from mulligan.observe.telemetry import Telemetry
from mulligan.worker.group import WorkerGroup, WorkerStoppedError
from mulligan.worker.health import health_server
from mulligan.worker.loading import load
from mulligan.worker.logs import say, set_up_logging
from mulligan.worker.wiring import running_worker

__all__ = ["main", "serve"]


def main(modules: Sequence[str], task_queue: str | None) -> int:
    """Serve the shipped agents and those of the modules, until SIGTERM or Ctrl-C.

    Args:
        modules: what `--load` named; those of `MULLIGAN_LOAD` come first.
        task_queue: where runs are served; that of `MULLIGAN_TASK_QUEUE` where None.

    Returns:
        The exit code: 0; 1 where Temporal's worker stopped by itself; 2 where it could not begin. The reason has been
        written to stderr, in one line.
    """
    try:
        chosen = settings()
        set_up_logging(chosen.log_format)
        asyncio.run(serve([*chosen.load, *modules], task_queue or chosen.task_queue))
    except DeclarationError as error:
        say(f"error: {error}")
        return 2
    except WorkerStoppedError:
        # The group has said why.
        return 1
    except RuntimeError as error:
        if "connect" not in str(error).lower():
            raise
        say(f"error: {explain_connection_error(error)}")
        return 2
    return 0


async def serve(load_these: Sequence[str], task_queue: str) -> None:
    """Serve until SIGTERM or Ctrl-C, then let running calls finish within the grace time.

    Raises:
        DeclarationError: something that is loaded, or a setting, cannot work.
        RuntimeError: no Temporal server answers.
        WorkerStoppedError: Temporal's worker stopped by itself. It has been reported.
    """
    loaded = load(load_these)
    telemetry = Telemetry()
    stop = asyncio.Event()
    client: Client | None = None
    group: WorkerGroup | None = None

    async def unready() -> str:
        if client is None or group is None or stop.is_set():
            return "draining" if stop.is_set() else "starting"
        return group.unready or await _cut_off(client)

    try:
        async with AsyncExitStack() as stack:
            if address := settings().health_address:
                say(f"Health at http://{await stack.enter_async_context(health_server(address, unready))}/readyz")
            # Before it connects: as process 1 of a container it would not be stopped by a signal that nobody handles.
            for sign in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(sign, stop.set)
            client = await connect(runtime=temporal_runtime())
            async with running_worker(client, loaded, telemetry, task_queue) as group:
                agents = ", ".join(sorted(loaded.registry.agents))
                at = client.service_client.config.target_host
                say(f"Serving {agents} on task queue {task_queue!r} at {at}. Ctrl-C drains and ends.")
                if build := settings().build_id:
                    say(f"Build {build} of {settings().deployment_name}: runs come once it is the current version.")
                await stop.wait()
                say("Draining: calls that run may finish; no new ones are taken.")
    finally:
        # What the last spans say of this worker must not be lost with it.
        await asyncio.to_thread(telemetry.shutdown)


async def _cut_off(client: Client) -> str:
    """Why the server cannot be reached, or nothing."""
    try:
        await client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=timedelta(seconds=2), retry=False)
    except RPCError as error:
        return f"Temporal does not answer: {error.status.name}"
    return ""
