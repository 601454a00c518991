"""The processes of `mulligan worker --processes N`: health, replacement, and their end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import uuid

import httpx2

from mulligan.devserver import DevServer
from tests.support.ports import free_ports
from tests.support.processes import children_of, is_running
from tests.system.features.test_supervisor import line_with, supervised


async def test_health_replacement_drain_and_orphans(temporal: DevServer) -> None:
    """Ready when all serve; a killed process is replaced; SIGTERM ends all; a killed supervisor leaves no process."""
    queue, [port] = f"supervised-{uuid.uuid4().hex[:6]}", free_ports(1)
    health = {"MULLIGAN_HEALTH_ADDRESS": f"127.0.0.1:{port}", "MULLIGAN_PROCESSES": "2"}

    async def until_ready(client: httpx2.AsyncClient) -> None:
        while (await client.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.1)

    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        async with supervised(queue, temporal, "--with-shipped", **health) as supervisor:
            await line_with(supervisor, "Supervising 2")
            await until_ready(client)
            first = children_of(supervisor.pid, "worker")
            assert len(first) == 2
            for pid in first:
                os.kill(pid, signal.SIGKILL)
                line = await line_with(supervisor, "has ended")
                assert re.search(rf"\(pid {pid}\) has ended: killed by SIGKILL. It is replaced (now|in 0.5 s)", line)
            assert (await client.get("/livez")).status_code == 200
            await until_ready(client)
            second = children_of(supervisor.pid, "worker")
            assert len(second) == 2
            assert not set(second) & set(first)
            supervisor.terminate()
            assert await supervisor.wait() == 0
            assert not [pid for pid in second if is_running(pid)]
        async with supervised(queue, temporal, "--with-shipped", **health) as supervisor:
            await line_with(supervisor, "Supervising 2")
            await until_ready(client)
            orphans = children_of(supervisor.pid, "worker")
            supervisor.kill()
            # Until another supervisor may have started, they serve on; then they drain, and the last one closes the pipe.
            assert len(orphans) == 2
            assert supervisor.stderr is not None
            said = (await supervisor.stderr.read()).decode()
            assert said.count("The supervisor has died: this worker serves for 5 s more") == 2, said
            assert said.index("The supervisor has died") < said.index("Draining"), said
            await supervisor.wait()
            while any(is_running(pid) for pid in orphans):
                await asyncio.sleep(0.1)
