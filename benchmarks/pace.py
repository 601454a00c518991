"""How fast: one run after another (`speed`), many at once (`throughput`), in turn with what they are compared to."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.process import cpu_of
from benchmarks.results import Job, Results
from benchmarks.stage import Stage, stage

STEPS_OF_MANY = 20
"""The steps of each run of `throughput`."""


async def measure(job: Job, results: Results) -> None:
    """Measure the repeats that are missing. A line has, by contender, the wall time and the CPU time of a step."""
    names = [*job.against, job.contender]
    runs, steps = (job.size, STEPS_OF_MANY) if job.figure == "throughput" else (1, job.size)
    async with stage(names) as made:
        # As many steps as it is about, up to a point: caches, pools and the server are then as warm as they get.
        for name in names:
            await _timed(made, name, runs, min(steps, 40))
        for repeat in results.missing(job):
            # Who begins changes, so that what came before is nobody's advantage.
            order = names if repeat % 2 == 0 else names[::-1]
            timed = {name: await _timed(made, name, runs, steps) for name in order}
            results.add(job, repeat, steps=steps, runs=runs, timed={name: timed[name] for name in names})


async def _timed(made: Stage, name: str, runs: int, steps: int) -> dict[str, Any]:
    """Of so many runs at once: seconds, and CPU seconds of each process of the stage."""
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
