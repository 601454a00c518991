"""Tools that hang use up the threads of a worker: it serves other runs until then, and another process takes its place."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
from temporalio.service import RPCError

from mulligan.activities.tool_running.thread_bounds import SHARE_OF_RUN
from mulligan.devserver import DevServer
from tests.support.lab import DONE, Lab, Ran, call
from tests.support.openai_turn import Turn
from tests.support.own_worker import BOTH_KINDS
from tests.support.ports import free_ports
from tests.support.worker_process import logging_worker_process
from tests.system.features.test_supervisor import line_with, supervised

THREADS = 16
OF_RUN = THREADS // SHARE_OF_RUN
MODULE, FEW_THREADS = "tests.support.hanging_agents", {"HANGING_THREADS": str(THREADS)}


async def begin(at: Lab, tool: str, *calls: int) -> Any:
    """Start a run whose calls of a tool hang. `calls`: the number of them in each of its steps."""
    steps = [[(tool, f'{{"number": {number}}}', None) for number in range(count)] for count in calls or (OF_RUN,)]
    turns = [*(Turn(calls=step) for step in steps), DONE]
    return await at.start(turns, agent="hanging")


async def hang(at: Lab, tool: str, *calls: int) -> Ran:
    """As `begin`; returns when the run has ended."""
    return await at.look(await begin(at, tool, *calls))


async def until_served(run: Any) -> None:
    while True:
        with suppress(RPCError):  # no worker polls yet
            await run.query("progress")
            return
        await asyncio.sleep(0.1)


async def asks(at: Lab) -> list[str]:
    """The results of a run that calls a tool which does not hang."""
    return [
        each["result"]["text"] for each in (await at.look(await at.start([call("now"), DONE], agent="hanging"))).calls
    ]


def texts(ran: Ran) -> list[str]:
    assert {each["result"]["error"]["kind"] for each in ran.calls} == {"tool_timeout"}
    return [each["result"]["text"] for each in ran.calls]


async def test_a_worker_without_threads_says_so_and_ends_and_its_supervisor_replaces_it_at_once(
    lab: Lab, temporal: DevServer, tmp_path: Path
) -> None:
    """One run with more calls than its share, and one tool in several runs, leave threads for others.

    The next process serves while the first one drains: a call that the first one has begun ends in it.
    """
    queue, [port] = f"hung-{uuid.uuid4().hex[:6]}", free_ports(1)
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    environment = {"MULLIGAN_HEALTH_ADDRESS": f"127.0.0.1:{port}", "MULLIGAN_GRACE_SECONDS": "100", **FEW_THREADS}
    async with (
        supervised(queue, temporal, "--processes", "1", module=MODULE, **environment) as supervisor,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        await line_with(supervisor, "Supervising 1 worker process")
        first = texts(await hang(at, "crawl", OF_RUN, 2))
        assert sum("did not finish within 0.5 s" in text for text in first) == OF_RUN
        refused = (
            f"`crawl` was not run, as {OF_RUN} calls of this run that did not end in time still run on this worker"
        )
        assert sum(refused in text for text in first) == 2
        await hang(at, "crawl")
        [text] = texts(await hang(at, "crawl", 1))
        assert f"as {2 * OF_RUN} calls of it that did not end in time still run on this worker" in text
        await hang(at, "print_page")
        assert (await client.get("/readyz")).status_code == 200
        assert await asks(at) == ["noon"]
        metadata = {"file": str(tmp_path / "go")}
        waiting = await at.start([call("wait_for_file"), DONE], agent="hanging", metadata=metadata)
        while (await waiting.query("progress"))["running"] != ["wait_for_file"]:
            await asyncio.sleep(0.1)
        hanging = asyncio.create_task(hang(at, "print_page"))
        line = await line_with(supervisor, "It is replaced now.")
        reason = f"no threads left: {THREADS} functions did not end within their time limits, and still run"
        assert f"drains: {reason} (" in line
        assert f"print_page: {THREADS // 2}" in line
        await hanging
        assert await asks(at) == ["noon"]
        (tmp_path / "go").touch()
        assert [each["result"]["text"] for each in (await at.look(waiting)).calls] == ["there"]
        assert "exit code 1." in await line_with(supervisor, "has ended")
        while (await client.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.1)
        supervisor.terminate()
        assert await supervisor.wait() == 0


@BOTH_KINDS
async def test_a_worker_without_threads_and_without_a_supervisor_exits(
    lab: Lab, temporal: DevServer, kind: str
) -> None:
    """Its last run goes on where another worker serves the queue."""
    queue = f"hung-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    async with logging_worker_process(MODULE, queue, temporal, kind, **FEW_THREADS) as worker:
        hanging = [await begin(at, tool) for tool in ("crawl", "print_page") * 2]
        assert "error: no threads left" in await line_with(worker, "error:")
        assert await worker.wait() == 1
    async with supervised(queue, temporal, "--processes", "1", module=MODULE, **FEW_THREADS) as supervisor:
        for run in hanging:
            # Queries need a worker, and a run may end while the first one drains.
            await until_served(run)
            assert all("did not finish within" in text for text in texts(await at.look(run)))
        supervisor.terminate()
        assert await supervisor.wait() == 0
