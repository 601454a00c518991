"""Speed: of single runs (`speed`) and of concurrent runs (`throughput`), alternating with those they are compared to."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.process import cpu_of
from benchmarks.results import Job, Results
from benchmarks.stage import Stage, stage

STEPS_OF_MANY = 20
"""The number of steps of each run of `throughput`."""
_RUNS_TO_WARM_UP = 20


async def measure(job: Job, results: Results) -> None:
    """Measure the missing repeats. A line has, by contender, the wall-clock time and the CPU time of a step."""
    names = [*job.against, job.contender]
    if job.figure == "throughput":
        for repeat in results.missing(job):
            timed = {name: await _alone(name, job.size) for name in _in_turn(names, repeat)}
            results.add(job, repeat, steps=STEPS_OF_MANY, runs=job.size, timed=timed)
        return
    async with stage(names) as made:
        # Warm up with the measured number of steps, up to a limit: then caches, pools and the server are warm.
        for name in names:
            await _timed(made, name, 1, min(job.size, 40))
        for repeat in results.missing(job):
            timed = {name: await _timed(made, name, 1, job.size) for name in _in_turn(names, repeat)}
            results.add(job, repeat, steps=job.size, runs=1, timed=timed)


def _in_turn(names: list[str], repeat: int) -> list[str]:
    """Rotate the order, so that no contender profits from its place."""
    return names if repeat % 2 == 0 else names[::-1]


async def _alone(name: str, runs: int) -> dict[str, Any]:
    """Use a new server: one with thousands of steps of another contender is slower."""
    async with stage([name]) as made:
        await _timed(made, name, _RUNS_TO_WARM_UP, STEPS_OF_MANY)
        return await _timed(made, name, runs, STEPS_OF_MANY)


async def _timed(made: Stage, name: str, runs: int, steps: int) -> dict[str, Any]:
    """Run that many runs at once; return the seconds, and the CPU seconds of each process."""
    processes = {
        "worker": made.worker(name).pid,
        "server": made.processes["server"].pid,
        "endpoint": made.processes["endpoint"].pid,
    }
    before = {of: cpu_of(pid) for of, pid in processes.items()}
    driver, began = time.process_time(), time.perf_counter()
    handles = await asyncio.gather(*(made.start(name, steps) for _ in range(runs)))
    await asyncio.gather(*(handle.result() for handle in handles))
    seconds = time.perf_counter() - began
    cpu = {of: round(cpu_of(pid) - before[of], 2) for of, pid in processes.items()}
    cpu["driver"] = round(time.process_time() - driver, 2)
    made.check()
    return {"seconds": round(seconds, 4), "cpu": cpu}
