"""How large a history gets (`history`), and how many steps a run can take (`survival`): with the server's own defaults."""

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
"""Seconds without a step, after which a run counts as one that does not end."""
_TELL_EVERY = 30


async def measure_history(job: Job, results: Results) -> None:
    """Events and bytes, summed over all runs of the chain: what is handed over counts."""
    for repeat in results.missing(job):
        async with stage([job.contender], stock=True) as made:
            handle = await made.start(job.contender, job.size)
            await handle.result()
            results.add(job, repeat, **await chain(made.client, handle))


async def measure_survival(job: Job, results: Results, say: Callable[[str], None]) -> None:
    """Let a run go on until it is done, or until it is ended."""
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
    """How it ended, and how many steps were taken until then."""
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
    """Runs, events and bytes of a run and of those that it continued as."""
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
