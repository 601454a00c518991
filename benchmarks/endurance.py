"""Sizes of histories (`history`) and the number of steps that a run can take (`survival`), with default server settings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowHistoryEventFilterType
from temporalio.service import RPCError

from benchmarks.results import Job, Results
from benchmarks.stage import Stage, stage

_STUCK_AFTER = 180
"""A run without a step for this many seconds counts as hung."""
_TELL_EVERY = 30


async def measure_history(job: Job, results: Results) -> None:
    """Measure events and bytes, summed over all runs of the chain: carried state counts."""
    for repeat in results.missing(job):
        async with stage([job.contender], stock=True) as made:
            handle = await made.start(job.contender, job.size)
            await handle.result()
            results.add(job, repeat, **await chain(made.client, handle))


async def measure_survival(job: Job, results: Results, say: Callable[[str], None]) -> None:
    """Measure a run until it completes, fails, or is terminated."""
    for repeat in results.missing(job):
        async with stage([job.contender], stock=True) as made:
            began = time.perf_counter()
            handle = await made.start(job.contender, job.size)
            outcome, steps = await _followed(made, handle, job, say)
            told = await chain(made.client, handle)
            seconds = round(time.perf_counter() - began)
            results.add(job, repeat, steps=steps, outcome=outcome, seconds=seconds, **told)


async def _followed(
    made: Stage, handle: WorkflowHandle[Any, Any], job: Job, say: Callable[[str], None]
) -> tuple[str, int]:
    """The outcome of the run and its number of steps."""
    ended = asyncio.create_task(handle.result())
    steps, since, told = 0, time.monotonic(), time.monotonic()
    while True:
        await asyncio.wait({ended}, timeout=1)
        now = time.monotonic()
        taken = (await made.endpoint_stats())["steps"].get(handle.id, 0)
        if taken > steps:
            steps, since = taken, now
        if ended.done():
            break
        if now - told > _TELL_EVERY:
            told = now
            say(f"  {steps:,} steps")
        if now - since > _STUCK_AFTER:
            ended.cancel()
            last = made.worker(job.contender).last_words
            return f"stuck: no step for {_STUCK_AFTER} s ({last[-1] if last else 'the worker said nothing'})", steps
    try:
        await ended
    except WorkflowFailureError as failure:
        cause = failure.cause
        return f"{type(cause).__name__}: {str(cause).splitlines()[0][:200] if str(cause) else ''}", steps
    except RPCError as error:
        return f"lost: {error.message[:200]}", steps
    return "completed", steps


async def chain(client: Client, handle: WorkflowHandle[Any, Any]) -> dict[str, int]:
    """The number of runs, events and bytes of a chain of runs."""
    run, sums = handle.first_execution_run_id, {"runs": 0, "events": 0, "bytes": 0, "carried_bytes": 0}
    while run:
        one = client.get_workflow_handle(handle.id, run_id=run)
        info = (await one.describe()).raw_description.workflow_execution_info
        sums["runs"] += 1
        sums["events"] += info.history_length
        sums["bytes"] += info.history_size_bytes
        run = ""
        async for event in one.fetch_history_events(event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT):
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                continued = event.workflow_execution_continued_as_new_event_attributes
                run = continued.new_execution_run_id
                sums["carried_bytes"] += continued.input.ByteSize()
    return sums
