"""What it takes to run again: `uv run python -m benchmarks.run_again {whatifs,long,experiment} [--runs N] [--seed 7]`.

A dev server and `mulligan worker` are processes of their own; the model is scripted in the worker. Printed as JSON:

- `whatifs`: of 200 runs that have booked three places, what-ifs with recorded tools and another model, which says other
  words, has another order, or makes a call that no run has made, with both `--unrecorded`; what became of them, and how
  often the tool has run in them.
- `long`: a run of 1,000 steps, and how long a fork takes at its last, middle and first step until it is started, and at the
  last one until it has ended.
- `experiment`: of 500 runs again, whose worker is killed three times at times that `--seed` decides; seconds, CPU time of
  the workers for a run, and how many runs were begun twice.

Whether forks of runs of every kind send the same bytes, and have no effects, is counted by
`uv run --group system pytest -n 0 -s tests/system/features/test_forks_of_every_kind.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import Client

from benchmarks.process import cpu_of
from benchmarks.results import commit
from mulligan import RunInput, connect, fork_run
from mulligan.client.experiments.start_experiment import Handle, start_experiment
from mulligan.client.start_run import start_run
from mulligan.devserver import DevServer, temporal_server
from mulligan.wire.experiments import PROGRESS_QUERY, ExperimentContent
from tests.support.worker_process import Process, worker_process

MODULE, QUEUE = "benchmarks.run_again_agents", "again"
STARTED_TOGETHER, CONCURRENCY, KILLS = 50, 10, 3
CHANGES = (("words", "diverge"), ("order", "diverge"), ("more", "diverge"), ("more", "error"))
"""The models of the what-ifs, and what becomes of their calls without a record."""


@dataclass
class Place:
    """A server, a client of it, and the file into which the tool of the runs writes."""

    server: DevServer
    client: Client
    bookings: Path

    async def run(self, run_id: str, model: str = "books", steps: int | None = None) -> None:
        """Run the booker to its end, or for so many steps."""
        run_input = RunInput(
            agent="booker",
            prompt="Book the places.",
            model=f"scripted:{model}",
            metadata={"bookings": str(self.bookings)},
            max_steps=steps,
        )
        await (await start_run(self.client, run_input, run_id, QUEUE)).handle.result()

    async def run_many(self, count: int) -> list[str]:
        """Run so many bookers; their ids."""
        together, ids = asyncio.Semaphore(STARTED_TOGETHER), [f"original-{number:04d}" for number in range(count)]

        async def run(run_id: str) -> None:
            async with together:
                await self.run(run_id)

        await asyncio.gather(*map(run, ids))
        return ids

    async def again(self, name: str, runs: Sequence[str], model: str, unrecorded: str = "diverge") -> Handle:
        """Start an experiment: the runs again with another model."""
        content = ExperimentContent(
            runs=[*runs], fork={"at": 1, "edits": {"model": f"scripted:{model}"}, "unrecorded": unrecorded}
        )
        return await start_experiment(self.client, content, {"name": name, "concurrency": CONCURRENCY}, QUEUE)

    @property
    def booked(self) -> int:
        """How often the tool has run."""
        return len(self.bookings.read_text().splitlines())


@asynccontextmanager
async def place() -> AsyncIterator[Place]:
    """A server without a worker."""
    with tempfile.TemporaryDirectory() as folder:
        async with temporal_server() as server:
            yield Place(server, await connect(server.address), Path(folder) / "bookings")


async def whatifs(count: int) -> dict[str, Any]:
    """What becomes of so many what-ifs with recorded tools, and how often the tool runs in them."""
    async with place() as at, worker_process(MODULE, QUEUE, at.server):
        ids = await at.run_many(count)
        before, began, outcomes = at.booked, time.monotonic(), {}
        for index, (model, unrecorded) in enumerate(CHANGES):
            handle = await at.again(f"whatif-{index}", ids[index :: len(CHANGES)], model, unrecorded)
            rows = (await handle.result())["rows"]
            outcomes[f"{model}, {unrecorded}"] = dict(Counter(row["outcome"] for row in rows))
        seconds = round(time.monotonic() - began, 1)
        return {"runs": count, "outcomes": outcomes, "effects": at.booked - before, "seconds": seconds}


async def long_run(steps: int) -> dict[str, Any]:
    """How long forks of a run of so many steps take."""
    async with place() as at, worker_process(MODULE, QUEUE, at.server):
        began = time.monotonic()
        await at.run("long", "long", steps)
        forks, took = [], time.monotonic() - began
        for step in (steps, steps // 2, 1):
            for attempt in ("first", "again"):
                began = time.monotonic()
                forked = await fork_run(at.client, "long", at=step)
                started = time.monotonic() - began
                forks.append({"step": step, "attempt": attempt, "seconds_to_start": round(started, 2)})
                if step == steps:
                    await forked.result()
                    forks[-1]["seconds_to_end"] = round(time.monotonic() - began, 2)
                else:
                    await forked.terminate()
        return {"steps": steps, "seconds_of_the_run": round(took, 1), "forks": forks}


async def experiment(count: int, seed: int) -> dict[str, Any]:
    """An experiment whose worker is killed, and another one started, three times."""
    async with place() as at:
        async with worker_process(MODULE, QUEUE, at.server):
            ids = await at.run_many(count)
        before = at.booked
        kills = sorted(random.Random(seed).sample(range(count // 20, count - count // 20), KILLS))
        began, cpu, handle = time.monotonic(), 0.0, None
        for kill in (*kills, None):
            async with worker_process(MODULE, QUEUE, at.server) as worker:
                handle = handle or await at.again("experiment", ids, "words")
                await (handle.result() if kill is None else _until(handle, kill))
                cpu += _cpu(worker)
                if kill is not None:
                    worker.send_signal(signal.SIGKILL)
                    await worker.wait()
        seconds = time.monotonic() - began
        assert handle is not None
        rows = (await handle.result())["rows"]
        started = Counter([each.id async for each in at.client.list_workflows('WorkflowId STARTS_WITH "experiment-"')])
        return {
            "runs": count,
            "concurrency": CONCURRENCY,
            "killed_after_rows": kills,
            "seconds": round(seconds, 1),
            "worker_cpu_ms_a_run": round(1_000 * cpu / count, 1),
            "outcomes": dict(Counter(row["outcome"] for row in rows)),
            "runs_begun": len(started),
            "runs_begun_twice": sum(times > 1 for times in started.values()),
            "effects": at.booked - before,
        }


async def _until(handle: Handle, done: int) -> None:
    """Wait until so many rows are done."""
    while (await handle.query(PROGRESS_QUERY))["done"] < done:  # noqa: ASYNC110 - the experiment is in another process
        await asyncio.sleep(0.2)


def _cpu(worker: Process) -> float:
    """CPU seconds of a worker's process and its children."""
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    return sum(cpu_of(pid) for pid in (worker.pid, *map(int, children)))


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("whatifs", "long", "experiment"))
    parser.add_argument("--runs", type=int, help="200 what-ifs, an experiment of 500 runs, or a run of 1,000 steps")
    parser.add_argument("--seed", type=int, default=7, help="decides when the workers are killed")
    given = parser.parse_args()
    before = os.getloadavg()[0]
    if given.part == "whatifs":
        figures = asyncio.run(whatifs(given.runs or 200))
    elif given.part == "long":
        figures = asyncio.run(long_run(given.runs or 1_000))
    else:
        figures = asyncio.run(experiment(given.runs or 500, given.seed)) | {"seed": given.seed}
    load = [round(each, 1) for each in (before, os.getloadavg()[0])]
    print(json.dumps({"part": given.part, **figures, "load": load, "commit": commit()}, indent=2))


if __name__ == "__main__":
    main()
