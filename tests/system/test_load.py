"""Many open runs on one worker: all complete, and memory is bounded. `pytest -s` prints the figures.

`LOAD_RUNS=1000 uv run --group system pytest -s -n 0` with this file has a thousand.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from mulligan.devserver import DevServer, temporal_server
from tests.support.temporal import connect_to
from tests.support.worker_process import worker_process

RUNS = int(os.environ.get("LOAD_RUNS", "200"))
PROMPT = "Wait. " * 700  # 4 KB
KB = 1024


@dataclass
class Worker:
    """A worker process and its resource use."""

    pid: int
    queue: str
    client: Client
    folder: Path
    figures: list[str] = field(default_factory=list)

    def memory(self) -> int:
        """Resident bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def cpu(self) -> float:
        """Processor time so far, in seconds."""
        told = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")

    def note(self, when: str) -> int:
        """Print a line of figures; return the resident memory in bytes."""
        print(
            f"  {when:28} {self.memory() / KB / KB:7.1f} MB  {self.threads():5} threads  {self.files():5} files"
            f"  {self.cpu():6.1f} s CPU",
            file=sys.stderr,
        )
        return self.memory()

    async def start(self, agent: str, number: int, round_: str, **run_input: Any) -> list[Any]:
        """Start `count` runs, fifty at a time."""
        given = {"agent": agent, "prompt": PROMPT, "metadata": {"gate": str(self.folder / round_)}, **run_input}
        few = asyncio.Semaphore(50)

        async def one(index: int) -> Any:
            async with few:
                return await self.client.start_workflow(
                    "AgentWorkflow", given, id=f"{self.queue}-{round_}-{index}", task_queue=self.queue
                )

        return await asyncio.gather(*(one(index) for index in range(number)))

    async def came(self, number: int, round_: str) -> None:
        """Wait until the tools of that many runs wait at once."""
        told = self.folder / f"{round_}.came"
        while not told.exists() or int(told.read_text() or 0) < number:
            await asyncio.sleep(0.2)

    def open(self, round_: str) -> None:
        """Let the waiting tools return."""
        (self.folder / round_).touch()


@asynccontextmanager
async def waiting_worker(server: DevServer, folder: Path, **environment: str) -> AsyncIterator[Worker]:
    """A worker process that serves the waiting agents. Asserts that it exits with 0."""
    queue = f"load-{uuid.uuid4().hex[:6]}"
    environment = {"MULLIGAN_GRACE_SECONDS": "2", **environment}
    async with worker_process("tests.support.waiting_runs", queue, server, **environment) as process:
        yield Worker(process.pid, queue, await connect_to(server), folder)
        process.terminate()
        assert await process.wait() == 0


async def completed(handles: list[Any]) -> None:
    # Not all at once: a thousand open requests would be an additional load on the server.
    few = asyncio.Semaphore(50)

    async def one(handle: Any) -> Any:
        async with few:
            return await handle.result()

    results = await asyncio.gather(*map(one, handles))
    assert {(result["status"], result["recovered_failures"]) for result in results} == {("completed", 0)}


@pytest.fixture
async def server() -> AsyncIterator[DevServer]:
    """A separate server for each test, because it keeps the runs in memory."""
    async with temporal_server() as started:
        yield started


async def round_of(worker: Worker, agent: str, name: str, *, slots: int) -> int:
    """Run runs that are all open at once, in their tools as far as there are slots, to their end."""
    handles = await worker.start(agent, RUNS, name)
    await worker.came(slots, name)
    which = f"TaskQueue = '{worker.queue}' AND ExecutionStatus = 'Running'"
    while (await worker.client.count_workflows(which)).count < RUNS:
        await asyncio.sleep(0.5)
    memory = worker.note(f"{agent}: {RUNS} open")
    worker.open(name)
    await completed(handles)
    worker.note(f"{agent}: all done")
    return memory


async def test_memory_and_threads_are_bounded_with_many_open_runs(server: DevServer, tmp_path: Path) -> None:
    """At most some hundred kilobytes for each run, and not one thread or connection for each."""
    slots = RUNS // 2
    async with waiting_worker(server, tmp_path, MULLIGAN_MAX_CONCURRENT_ACTIVITIES=str(slots)) as worker:
        worker.open("warm")
        await completed(await worker.start("crowd", 20, "warm"))
        empty, threads, files = worker.note("after 20 runs"), worker.threads(), worker.files()
        assert (await round_of(worker, "crowd", "all", slots=slots) - empty) / RUNS < 600 * KB
        assert worker.threads() - threads < RUNS / 4
        assert worker.files() - files < RUNS / 4


async def test_caching_few_workflows_bounds_memory_with_many_open_runs(server: DevServer, tmp_path: Path) -> None:
    """A twentieth of the runs in memory, and concurrent calls of a fifth, need a fraction of the memory, also at the end."""
    cached, slots = RUNS // 20, RUNS // 5
    limits = {"MULLIGAN_MAX_CACHED_WORKFLOWS": str(cached), "MULLIGAN_MAX_CONCURRENT_ACTIVITIES": str(slots)}
    async with waiting_worker(server, tmp_path, **limits) as worker:
        worker.open("warm")
        await completed(await worker.start("crowd", 20, "warm"))
        empty = worker.note(f"after 20 runs, {cached} cached")
        await round_of(worker, "crowd", "few", slots=slots)
        assert (worker.memory() - empty) / RUNS < 150 * KB
