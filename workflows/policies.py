"""Every timeout, retry policy and limit that the workflow sets, with its reason."""

from __future__ import annotations

from datetime import timedelta

from temporalio.common import RetryPolicy

HEARTBEAT_TIMEOUT = timedelta(seconds=8)
"""The contract: a lost worker is noticed within 10 s. The server needs a moment; a busy worker beats every 2 s."""

ANSWER_MARGIN = timedelta(seconds=120)
"""Beside the model's own time, for what is asked about its answer: fixers, a second model, the guard (100 s in all)."""

ATTEMPT_MARGIN = timedelta(seconds=10)
"""An activity ends its own attempt on time and says why. Temporal's limit is this much later: it is for dead workers."""

OPEN_RUN_TIMEOUT = timedelta(seconds=60)
OPEN_RUN_RETRY = RetryPolicy(maximum_attempts=5)
"""A user's instructions function runs in it: one that fails five times fails the run, with its reason."""

RECORD_TIMEOUT = timedelta(seconds=10)
RECORD_RETRY = RetryPolicy(maximum_attempts=3)
"""Local activities that write a span. A hung local activity blocks queries, so they are bounded."""

LOCAL_TOOL_LONGEST = timedelta(seconds=10)
"""A hung local activity blocks every query and signal: a local tool's timeout is cut to this."""

TOOL_BACKOFF_FIRST, TOOL_BACKOFF_LONGEST = timedelta(milliseconds=500), timedelta(seconds=30)

INLINE_BYTES = 256 * 1024
"""New messages up to this travel with the model call; more is fetched by query. Over 2 MB the server ends the run."""

PAGE_BYTES = 500_000
"""A query's answer: the server warns beyond 512 KB and refuses 2 MB."""

HISTORY_EVENTS, HISTORY_BYTES = 4_000, 4 * 1024 * 1024
"""How far a workflow run's history grows before it continues as new: near Temporal's own suggestion (4,096 events, 4 MB).
A cold replay of that takes 2 s; the server ends a run at 51,200 events or 50 MB."""

TRY_AGAIN_BYTES = 1_000_000
"""A conversation that did not fit into a hand-over is not compressed again at each step, but after so much more history."""

CARRY_BYTES = 1_800_000
"""What continue-as-new may carry: the server terminates a run whose input is over 2 MB, so it is measured first."""

COMPACTION_PATIENCE = 300.0
"""Seconds that a compaction waits for an endpoint that is down: the run can go on without it, and its call waits longer."""


def model_retry(attempts: int | None) -> RetryPolicy:
    """The activity itself sets each delay (Retry-After, jitter) and gives up when the patience is spent."""
    return RetryPolicy(
        initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=60), maximum_attempts=attempts or 0
    )


def tool_retry(attempts: int) -> RetryPolicy:
    """At most `attempts` starts in all; 1, the default, is at most once."""
    return RetryPolicy(
        initial_interval=TOOL_BACKOFF_FIRST, maximum_interval=TOOL_BACKOFF_LONGEST, maximum_attempts=attempts
    )
