"""The memory of an open run in a worker (`memory`), and the speed of a replay (`replay`)."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHandle

from benchmarks.contenders import ALL
from benchmarks.results import Job, Results
from benchmarks.stage import Stage, replay, stage

STEPS_OF_OPEN_RUNS = 100
TIMES_REPLAYED = 5
_AT_ONCE = 5
_SETTLE = 3.0
_LONGEST = 600
_NO_HAND_OVER = (
    "limit.historyCount.suggestContinueAsNew=1000000",
    "limit.historySize.suggestContinueAsNew=1000000000",
)


async def measure_memory(job: Job, results: Results) -> None:
    """Measure the memory of a new worker, idle and with `job.size` open runs of 100 steps in its cache."""
    for repeat in results.missing(job):
        async with stage([job.contender]) as made:
            for _ in range(3):
                await (await made.start(job.contender, STEPS_OF_OPEN_RUNS)).result()
            await asyncio.sleep(_SETTLE)
            idle = made.worker(job.contender).usage()
            # A few at a time: starting all at once would measure the peak of the heap, not the size of the runs.
            for done in range(0, job.size, _AT_ONCE):
                batch = range(min(_AT_ONCE, job.size - done))
                handles = [await made.start(job.contender, STEPS_OF_OPEN_RUNS, hold=True) for _ in batch]
                await asyncio.gather(*(_holds(made, handle) for handle in handles))
            await asyncio.sleep(_SETTLE)
            held = made.worker(job.contender).usage()
            results.add(
                job,
                repeat,
                steps=STEPS_OF_OPEN_RUNS,
                idle={"resident": idle.resident, "private": idle.private},
                held={"resident": held.resident, "private": held.private},
            )


async def _holds(made: Stage, handle: WorkflowHandle[Any, Any]) -> None:
    """Wait until the history, of at least 7 events a step, does not grow any more, and an activity is open."""
    before = 0
    async with asyncio.timeout(_LONGEST):
        while True:
            await asyncio.sleep(1)
            made.check()
            told = (await handle.describe()).raw_description
            events = told.workflow_execution_info.history_length
            if told.pending_activities and events == before >= 7 * STEPS_OF_OPEN_RUNS:
                return
            before = events


async def measure_replay(job: Job, results: Results) -> None:
    """Measure the SDK's Replayer in a separate process, on the history of a single run of `job.size` steps."""
    for repeat in results.missing(job):
        async with stage([job.contender], settings=_NO_HAND_OVER) as made:
            handle = await made.start(job.contender, job.size)
            await handle.result()
            history = await handle.fetch_history()
            size = (await handle.describe()).raw_description.workflow_execution_info.history_size_bytes
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "history.json"
            file.write_text(history.to_json())
            told = json.loads((await replay(ALL[job.contender].worker, file, TIMES_REPLAYED)).splitlines()[-1])
        results.add(job, repeat, bytes=size, **told)
