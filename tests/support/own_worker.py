"""Somebody's own worker with `MulliganPlugin`, as docs/existing-worker.md shows it: in this process, or as a program.

The tests of what docs/playbooks-workers.md says run on `mulligan worker` and on this one.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.worker import Worker

from mulligan import MulliganPlugin
from mulligan.observe.telemetry import Telemetry
from mulligan.worker.group import WorkerGroup
from mulligan.worker.health import health_server
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker

KINDS = ("ours", "own")
BOTH_KINDS = pytest.mark.parametrize("kind", KINDS)
"""The kinds of workers: those of `mulligan worker`, and those that somebody makes with the plugin."""


def serving(
    kind: str, client: Client, modules: Sequence[str], telemetry: Telemetry, queue: str, **options: Any
) -> AbstractAsyncContextManager[WorkerGroup]:
    """Run a worker of one of the kinds in this process. `options`: those of an own worker, which has no settings for them."""
    if kind == "ours":
        return running_worker(client, load(modules), telemetry, queue)
    return _own_worker(client, modules, queue, options)


@asynccontextmanager
async def _own_worker(
    client: Client, modules: Sequence[str], queue: str, options: dict[str, Any]
) -> AsyncIterator[WorkerGroup]:
    plugin = MulliganPlugin(load=modules)
    grace = timedelta(seconds=1)
    async with Worker(client, task_queue=queue, plugins=[plugin], graceful_shutdown_timeout=grace, **options):
        while (group := next(iter(plugin._workers.values())).group) is None or not group.monitors:
            await asyncio.sleep(0.01)
        yield group


async def main(module: str, queue: str) -> None:
    """Serve until SIGTERM. With `OWN_LOG=python` the program has set up its log by itself; with `OWN_HEALTH` it has a check."""
    if os.environ.get("OWN_LOG") != "python":
        MulliganPlugin.set_up_logging()
    else:
        logging.basicConfig(level=logging.INFO)
    config = ClientConfig.load_client_connect_config()
    plugin = MulliganPlugin(load=[module])
    client = await Client.connect(**config, plugins=[plugin], runtime=MulliganPlugin.runtime())
    grace = timedelta(seconds=float(os.environ.get("OWN_GRACE_SECONDS", "1")))
    worker = Worker(client, task_queue=queue, graceful_shutdown_timeout=grace)
    stopping: list[asyncio.Task[None]] = []
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, lambda: stopping.append(asyncio.create_task(worker.shutdown()))
    )
    async with AsyncExitStack() as stack:
        if address := os.environ.get("OWN_HEALTH"):
            bound = await stack.enter_async_context(health_server(address, plugin.unready))
            print(f"Health checks at http://{bound}/readyz", file=sys.stderr, flush=True)
        await worker.run()


def run() -> None:
    """The program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", required=True)
    parser.add_argument("--task-queue", required=True)
    given = parser.parse_args()
    asyncio.run(main(given.load, given.task_queue))


if __name__ == "__main__":
    run()
