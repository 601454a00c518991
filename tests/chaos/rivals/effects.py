"""The tools of the comparison, as activities of rivals see them, and their time limits."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

from temporalio import activity
from temporalio.common import RetryPolicy

from tests.chaos.ledger import write

ONCE = "CHAOS_ONCE"
"""The environment variable that decides how `pay` is retried: `1`: never; otherwise by Temporal's policy, without a limit."""
LIMIT, HEARTBEAT = timedelta(seconds=60), timedelta(seconds=10)
"""Of an attempt. All rivals take a heartbeat timeout; without it, a lost attempt is noticed after the limit."""
PAY = RetryPolicy(maximum_attempts=1) if os.environ.get(ONCE) == "1" else RetryPolicy()
FETCH = RetryPolicy(maximum_attempts=3)


async def effect(tool: str, milliseconds: int) -> None:
    """Write the start and the end of an attempt, with a pause in between."""
    info = activity.info()
    run = info.workflow_id or ""
    call = f"{info.activity_id}/{tool}"  # an activity of LangGraph makes all calls of a step
    key = f"{run}/{info.workflow_run_id}/{call}"
    write("start", tool, run=run, call=call, key=key, attempt=info.attempt)
    await asyncio.sleep(milliseconds / 1000)
    write("end", tool, run=run, call=call, key=key, attempt=info.attempt)
