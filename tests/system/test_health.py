"""The probes of a worker: ready while it serves, not ready while it drains or has lost its server, always live."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mulligan.devserver import DevServer, temporal_server
from tests.support.lab import DONE, call
from tests.support.openai_server import OpenAIServer
from tests.support.own_worker import BOTH_KINDS
from tests.support.temporal import connect_to, environment_of

Probe = tuple[int, str]


PROGRAMS: dict[str, Any] = {
    "ours": {},
    "own": {"program": ("-m", "tests.support.own_worker"), "health": "OWN_HEALTH", "OWN_GRACE_SECONDS": "30"},
}
"""What `probed_worker` gets for each kind of worker."""


@asynccontextmanager
async def probed_worker(
    server: DevServer,
    program: Sequence[str] = ("worker.py",),
    health: str = "MULLIGAN_HEALTH_ADDRESS",
    **environ: str,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`worker.py`, or another program, as a process; yields the process and the URL of its probes.

    `health`: the variable for their address.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, *program, "--load", "tests.support.shop_agents", "--task-queue", "probed",
        env={**os.environ, **environment_of(server), health: "127.0.0.1:0", **environ},
        stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr
    try:
        line = (await process.stderr.readline()).decode()
        found = re.search(r"http://[\d.:]+", line)
        assert found, line
        draining = asyncio.create_task(process.stderr.read())
        yield process, found[0]
        await draining
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def probe(url: str, path: str) -> Probe:
    async with httpx2.AsyncClient() as client:
        answer = await client.get(f"{url}{path}")
    return answer.status_code, answer.text.strip()


async def until(url: str, wanted: Probe) -> None:
    while await probe(url, "/readyz") != wanted:
        await asyncio.sleep(0.1)


@BOTH_KINDS
async def test_a_worker_is_ready_while_it_serves_and_not_ready_when_it_drains_or_lost_its_server(
    model: OpenAIServer, tmp_path: Path, kind: str
) -> None:
    model.script("probed", [call("wait_for_file"), DONE])
    async with temporal_server() as server, probed_worker(server, **PROGRAMS[kind]) as (process, url):
        await until(url, (200, "ok"))
        client = await connect_to(server)
        about: dict[str, object] = {"agent": "shop", "prompt": "Wait.", "model": "openai-chat:probed"}
        about |= {"metadata": {"file": str(tmp_path / "go")}}
        handle = await client.start_workflow("AgentWorkflow", about, id="waits", task_queue="probed")
        while (await handle.query("progress"))["running"] != ["wait_for_file"]:
            await asyncio.sleep(0.1)
        process.terminate()
        await until(url, (503, "draining"))
        assert await probe(url, "/livez") == (200, "ok")
        (tmp_path / "go").touch()
        assert await process.wait() == 0
    async with temporal_server() as server:
        lost = probed_worker(server, **PROGRAMS[kind])
        process, url = await lost.__aenter__()
        await until(url, (200, "ok"))
    # The server has ended.
    await until(url, (503, "Temporal does not answer: UNAVAILABLE"))
    assert await probe(url, "/livez") == (200, "ok")
    process.kill()
    await lost.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"MULLIGAN_HEALTH_ADDRESS": "8080"}, "MULLIGAN_HEALTH_ADDRESS is '8080', but it must be host:port"),
        ({"MULLIGAN_HEALTH_ADDRESS": "192.0.2.1:8080"}, 'MULLIGAN_HEALTH_ADDRESS is "192.0.2.1:8080", but the worker cannot listen there'),
        ({"TEMPORAL_WORKER_BUILD_ID": "b"}, "only the build id is set."),
        ({"TEMPORAL_DEPLOYMENT_NAME": "d"}, "only the name is set."),
        ({"MULLIGAN_JAEGER_URL": "localhost:16686"}, "MULLIGAN_JAEGER_URL is 'localhost:16686', but it must begin with"),
    ],
)  # fmt: skip
async def test_a_worker_with_wrong_settings_exits_with_a_sentence(environ: dict[str, str], says: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "worker.py", env={**os.environ, **environ}, stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    assert process.returncode == 2
    assert says in err.decode()
    assert "Traceback" not in err.decode()
