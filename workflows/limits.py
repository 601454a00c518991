"""Every timeout, retry policy and limit that the workflow sets, with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from temporalio import workflow
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

TOOL_BACKOFF_FIRST, TOOL_BACKOFF_LONGEST = timedelta(milliseconds=500), timedelta(seconds=30)

INLINE_BYTES = 256 * 1024
"""New messages up to this travel with the model call; more is fetched by query. Over 2 MB the server ends the run."""

RESULT_BYTES = 1_400_000
"""One result (render_result.MAX_BYTES)."""

PAGE_BYTES = 500_000
"""A query's answer: the server warns beyond 512 KB and refuses 2 MB."""

INPUT_BYTES = 1_000_000
"""Messages of a run's input up to this are one answer with the rest of it, whose prompt and metadata may be large too."""

GROWN_EVENTS, GROWN_BYTES = 4_000, 4 * 1024 * 1024
"""How far a workflow run's history grows before it continues as new: near Temporal's own suggestion (4,096 events, 4 MB).
A cold replay of that takes 2 s; the server ends a run at 51,200 events or 50 MB."""

TRY_AGAIN_BYTES = 1_000_000
"""A conversation that did not fit into a hand-over is not compressed again at each step, but after so much more history."""

CARRY_BYTES = 1_800_000
"""What continue-as-new may carry: the server terminates a run whose input is over 2 MB, so it is measured first."""

COMPACTION_PATIENCE = 300.0
"""Seconds that a compaction waits for an endpoint that is down: the run can go on without it, and its call waits longer."""

STEP_RESULTS_BYTES, STEP_LOCAL_BYTES = 6_000_000, 2_500_000
"""Results of all calls of a step together: of tools, and of those among them that are local (theirs are one message to the
server, which ends at 4 MB). Fifty results of a megabyte each filled a history at once: the server terminated the run."""

COMMANDS_BYTES, COMMAND_BYTES = 2_500_000, 1_000
"""Inputs of calls that are scheduled at once, beside their arguments (fit_answer bounds those), and what each of them
takes without: they are one message to the server, which ends at 4 MB."""

HISTORY_BYTES, HISTORY_EVENTS = 40_000_000, 45_000
"""A history that has grown beyond takes no further step: at 50 MB or 51,200 events the server terminates the run. A step
adds at most about 10 MB (STEP_RESULTS_BYTES) and 800 events (fit_answer.MOST_CALLS)."""


CHECK_EDIT_TIMEOUT, CHECK_EDIT_PATIENCE = timedelta(seconds=20), timedelta(seconds=60)
"""A person waits for it: the guard may take 10 s."""

STOP_GRACE = timedelta(seconds=30)
"""What a model call may still take once its run is to stop; calls of tools that run may take the time that is theirs."""

MESSAGE_IDS_KEPT, DECISIONS_KEPT = 10_000, 1_000
"""How many ids of messages are known again when they come a second time, and decisions that are told to who comes late."""


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


def share_of_results(calls: int, *, local: bool) -> int | None:
    """Bytes of each result of a step of so many calls; None where each may be as large as one alone can."""
    share = (STEP_LOCAL_BYTES if local else STEP_RESULTS_BYTES) // max(1, calls)
    return share if share < RESULT_BYTES else None


def bytes_of(metadata: Mapping[str, str]) -> int:
    """What a run's metadata takes as JSON, about: it goes with every call."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in metadata.items())


def scheduled_at_once(calls: int, metadata: Mapping[str, str]) -> int:
    """How many calls of a step may be scheduled at once: all, but for a run with very large metadata."""
    most = max(1, COMMANDS_BYTES // (bytes_of(metadata) + COMMAND_BYTES))
    # Runs that had scheduled more before there was this limit are replayed as they were.
    return calls if calls <= most or not workflow.patched("scheduled_at_once") else most


def is_history_long() -> bool:
    """Whether another step might be the one at which the server terminates the run."""
    info = workflow.info()
    return info.get_current_history_size() > HISTORY_BYTES or info.get_current_history_length() > HISTORY_EVENTS


def history_is_full() -> bool:
    """Whether no further step may be taken for that. Runs that had got further unlimited are replayed as they were."""
    return is_history_long() and workflow.patched("max_history")
