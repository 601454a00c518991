"""Every timeout, retry policy and limit that the workflows apply, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

from mulligan.run_input import RunInput

# Activities

HEARTBEAT_TIMEOUT = timedelta(seconds=5)
"""A lost worker is noticed after 5 to 6 s (docs/playbooks-workers.md). An activity sends a heartbeat every 1.5 s
(mulligan/worker/options.py, activities/heartbeat.py); the server needs some time of its own. The cost:
docs/decisions/2026-11-27-lost-workers.md."""

MODEL_ATTEMPT_MARGIN = timedelta(seconds=120)
"""Added to the model's timeout: the same attempt runs fixers, a second model and the guard on the answer (100 s in all)."""

TOOL_ATTEMPT_MARGIN = timedelta(seconds=10)
"""Added to a tool's timeout. The activity itself ends its attempt on time and says why; Temporal's later timeout only
ends attempts of dead workers."""

UNKNOWN_TOOL_TIMEOUT = 60.0
"""Seconds for a tool that was not pinned when the turn opened: the default of every tool."""

OPEN_RUN_TIMEOUT = timedelta(seconds=60)
OPEN_RUN_RETRY = RetryPolicy(maximum_attempts=5)
"""`open_run` calls the user's instructions function. After five failures the run fails, with the reason."""

AGENT_START_TIMEOUT = timedelta(seconds=15)
"""How long an activity may wait in the queue of the workers that serve its agent, before the run's own queue is used again:
these workers may be gone, or serve other agents since a deploy."""

QUEUES_TRIED = 8
"""On how many task queues an activity is tried in a row that the workers decline, as they do not serve its agent."""

NOT_SERVED_FIRST_PAUSE, NOT_SERVED_LONGEST_PAUSE = 2.0, 60.0
"""Seconds between two such rows of tries while no worker serves the agent. Each adds about ten events to the history."""

RECORD_TIMEOUT = timedelta(seconds=10)
RECORD_RETRY = RetryPolicy(maximum_attempts=3)
"""For the local activities that write spans. A local activity that hangs blocks queries, so the time is short."""

TOOL_RETRY_FIRST, TOOL_RETRY_LONGEST = timedelta(milliseconds=500), timedelta(seconds=30)
"""Intervals between attempts of a tool that allows several. The first is short, as a lost worker needs no back-off."""

COMPACTION_PATIENCE = 300.0
"""Seconds for which a compaction retries an endpoint that is down. It is short: the run can continue without a summary."""

CHECK_EDIT_TIMEOUT, CHECK_EDIT_TOTAL_TIMEOUT = timedelta(seconds=30), timedelta(seconds=60)
"""For one attempt, and for all of them. A person waits for the answer; guard and policy may take 10 s each."""

CLEAN_UP_DELAY = timedelta(seconds=1)
"""How long a clean-up waits, until the run that has started it has ended."""
CANCEL_DEFERRED_TIMEOUT, CANCEL_DEFERRED_TOTAL_TIMEOUT = timedelta(seconds=20), timedelta(seconds=60)
CANCEL_DEFERRED_RETRY = RetryPolicy(maximum_attempts=3)
"""For what ends a deferred call: one attempt, and all of them. A run that is stopped or cancelled waits for it."""

POLL_FIRST, POLL_GROWTH, POLL_LONGEST = 2.0, 1.5, 60.0
"""Seconds until a background response is read first; each interval is so many times the one before; and the longest. A poll
adds eleven events and 1.5 KB to the history: 16 polls in the first ten minutes, 60 in each hour after that."""

POLL_AFTER_LIMIT = 600.0
"""Seconds that an endpoint's Retry-After may delay the next poll at most."""

READ_RESPONSE_TIMEOUT = timedelta(seconds=100)
"""For reading a background response: 35 s for the text so far (activities/background/background_text.py), 45 s for the
response itself. What its answer needs is added (MODEL_ATTEMPT_MARGIN)."""

END_RESPONSE_TIMEOUT, END_RESPONSE_TOTAL_TIMEOUT = timedelta(seconds=25), timedelta(seconds=60)
END_RESPONSE_RETRY = RetryPolicy(maximum_attempts=5)
"""For cancelling and deleting a background response: one attempt, and all of them. The run waits for it."""

BATCH_TRIES = 5
"""How often a request may be in a batch, where the agent has no `model_attempts`: a batch may take a day."""
BATCH_RETRY_FIRST, BATCH_RETRY_LONGEST = 30.0, 3_600.0
"""Seconds until a request whose entry has failed is sent again; they double."""
PREPARE_BATCH_TIMEOUT, READ_BATCH_TIMEOUT = timedelta(seconds=60), timedelta(seconds=180)
"""For reading the conversation and storing the request, and for reading the answer, with fixers and the guard (100 s)."""
SUBMIT_BATCH_TIMEOUT, DELIVER_BATCH_TIMEOUT = timedelta(minutes=30), timedelta(hours=1)
"""For the upload of 50 MB over a slow line; for the download, and one signal for each request."""
BATCH_RETRY = RetryPolicy(initial_interval=timedelta(seconds=2), maximum_interval=timedelta(minutes=2))
"""For the activities about batches: they are tried until they succeed, as answers that were paid for must not be lost."""
BATCH_POLL_GROWTH, BATCH_POLL_LONGEST = 1.5, 600.0
"""Each interval between two polls of a batch is so many times the one before; and the longest. In 24 hours it is polled 150
times, which adds 1,700 events to the history of its workflow."""
COLLECTOR_IDLE = 3_600.0
"""Seconds after which a collector without requests ends. The next request starts another one."""
COLLECTOR_RETRY = 5.0
"""Seconds until a request is handed over again that its collector did not take: it has ended, or has too many signals."""
COLLECTOR_SIGNALS = 2_000
"""After so many signals a collector continues as new: the server takes 10,000 in a run."""
BATCH_INPUT_BYTES = 1_000_000
"""Bytes of the list of a batch's requests: it is an activity's input, whose limit is 2 MB."""

BUDGET_FIRST, BUDGET_LONGEST = 60.0, 3_600.0
"""Seconds until a run whose tenant has spent its budget asks again, as the operator may have raised it; they double."""
BUDGET_SPREAD = 60.0
"""Seconds after the end of the day in which the runs that wait for it ask again."""
AFTER_BUDGET_DAY = 3_600.0
"""Seconds that the workflow of a tenant's day stays open after it: clocks of workers differ, and requests are sent again."""
BUDGET_SIGNALS = 1_000
"""After so many signals the workflow of a tenant's day continues as new. Each adds at most four events."""

EARLIER_DECISIONS, EARLIER_CHARS = 5, 200
"""Earlier decisions on a tool that whoever decides on its next call is shown, and characters of the arguments of each."""
RUN_RULES, RUN_RULES_BYTES = 100, 100_000
"""Rules of approval of one run, and their bytes as JSON: continue-as-new carries them."""
TENANT_RULES, TENANT_RULES_BYTES = 1_000, 1_000_000
"""Those of a tenant: one payload of Temporal's has them."""
RULE_UPDATES = 1_000
"""After so many updates the workflow of a tenant's rules continues as new. Each adds at most five events."""
TENANT_RULES_TIMEOUT, TENANT_RULES_TOTAL_TIMEOUT = timedelta(seconds=5), timedelta(seconds=10)
"""For one attempt to reach a tenant's rules, and for all of them: then a person is asked."""

ASKING_ACTIVITIES = 4
"""How many running calls may wait for a person by an update of their workflow. The server allows ten updates in progress
for a workflow, and people's own must be among them; a further call tries again every few seconds."""

STOP_GRACE = timedelta(seconds=30)
"""How long a model call may still run after a request to stop. Tool calls that run keep their own timeouts."""

# Payloads. The server terminates a run whose activity or workflow input is larger than 2 MB.

INLINE_BYTES = 256 * 1024
"""New messages up to this size are part of the model call's input; the worker fetches more by query."""

REFERENCE_CHARS = 100
"""A tool result longer than this is replaced by a reference in the model call's input, which is then the shorter one."""

RESULT_BYTES = 1_400_000
"""One tool result; the same as render_result.MAX_BYTES."""

PAGE_BYTES = 500_000
"""One page of a query's answer: the server warns above 512 KB and refuses 2 MB."""

LIST_AGENTS_TIMEOUT = timedelta(seconds=2)
"""For a worker that serves other agents than the one that was asked which agents there are. A person may wait for it."""

EVENT_BYTES = 1_900_000
"""One event, which is then a page alone: what an activity returned, so at most 2 MB with what is beside it."""

INPUT_BYTES = 1_000_000
"""Messages of a run's input up to this size are in one query answer with its prompt and metadata, which may be large too."""

DECISION_TEXT_CHARS = 2_000
"""The line that tells a person what they decide on."""

WORKFLOW_ID_BYTES = 255
"""The longest workflow id: the width of Temporal's column in PostgreSQL and MySQL."""

# What one step may schedule and write. The commands of one workflow task are one message to the server, at most 4 MB.

STEP_RESULTS_BYTES, STEP_LOCAL_RESULTS_BYTES = 6_000_000, 2_500_000
"""Results of all tool calls of a step together; and of local calls, whose results are in one such message. With 50 results
of 1 MB each, the server terminated a run at once."""

LEAST_SHARE = 8_000
"""Bytes that a result of a script's call may have in any case: a script may make 1,000 calls."""

SCRIPT_MARGIN = timedelta(seconds=150)
"""Added to a script's own time: the same activity asks the run for earlier results, and runs fixers and the guard on the
script's calls (100 s in all)."""

SCRIPT_QUEUE = timedelta(hours=6)
"""Added to it, too: a worker runs eight scripts at once, and those of up to 500 activities may wait there. Heartbeats tell
that the worker lives; it ends a script whose own time is over."""

SCRIPTS_AT_ONCE = 2
"""How many scripts of an agent run at once; not those that wait for their calls. The others wait in the workflow."""

SCRIPT_CALLS = 100
"""How many calls of a script are scheduled by one workflow task at most."""

COMMANDS_BYTES, COMMAND_BYTES = 2_500_000, 1_000
"""Inputs of all calls that are scheduled at once, without their arguments (size_limits.py bounds those); and the size of
one such input without its metadata."""

CHILD_ID_ATTEMPTS = 3
"""How many workflow ids are tried for a sub-agent's run: after a reset, the run with the first id may still be closing."""

# The size of a history. The server terminates a run at 51,200 events or 50 MB.

CONTINUE_AS_NEW_EVENTS, CONTINUE_AS_NEW_GROWTH_BYTES = 4_000, 4 * 1024 * 1024
"""How far a run's history grows before it continues as new: close to Temporal's own suggestion (4,096 events, 4 MB). A
worker without the run in its cache replays that much in 2 s."""

CONTINUE_AS_NEW_RETRY_BYTES = 1_000_000
"""A state that was too large to carry is encoded again only after this much more history."""

CARRY_BYTES = 1_800_000
"""The largest state that continue-as-new carries without external storage. It is measured before the command, as the
server terminates a run whose input is over 2 MB."""

STATE_BYTES = 128_000_000
"""The largest state that is carried, before it is compressed: external storage has 32 MB, and texts shrink to a fourth."""

HISTORY_BYTES, HISTORY_EVENTS = 40_000_000, 45_000
"""A run with a larger history takes no further step. One step adds at most about 10 MB (STEP_RESULTS_BYTES) and 800
events (size_limits.MOST_CALLS)."""

# What a run remembers of people's updates.

MESSAGE_IDS_KEPT, DECISIONS_KEPT = 10_000, 1_000
"""How many ids of messages are remembered, so that a repeated one is ignored; and how many decisions, so that a late
update is refused with what was decided."""

MOST_REMINDERS = 10
"""How often people are reminded of a call that waits for them: each reminder adds about six events to the history. Their
intervals double, so the last one of a call that is first reminded of after an hour comes after six weeks."""

DECISIONS_CARRIED_BYTES = 100_000
"""How much JSON of them continue-as-new carries, the newest first: about 500 decisions, a few kilobytes compressed."""

UPDATE_ANSWERS_KEPT, UPDATE_ANSWERS_BYTES = 1_000, 100_000
"""The number of updates whose answers a run remembers, for repeated updates; and the bytes of JSON of these answers that
continue-as-new carries. Senders repeat an update for less than a minute, in which a run takes some hundred updates."""

ONCE_RESULTS_BYTES = 64 * 1024
"""Results of calls of tools with `once` that are carried beside the calls, as a compaction has removed their messages. The
feedback on a call that equals an older one has no result."""


def model_retry(attempts: int | None) -> RetryPolicy:
    """Retries of model calls. The activity sets each delay (Retry-After, jitter) and gives up when patience ends."""
    return RetryPolicy(
        initial_interval=timedelta(seconds=1),
        maximum_interval=timedelta(seconds=60),
        maximum_attempts=attempts or 0,
    )


def model_attempt_timeout(timeout: float) -> timedelta:
    """The timeout of an activity that calls a model whose own `timeout` is given in seconds."""
    return timedelta(seconds=timeout) + MODEL_ATTEMPT_MARGIN


def tool_retry(attempts: int) -> RetryPolicy:
    """Retries of tool calls: at most `attempts` starts in all; 1, the default, means at most once."""
    if attempts == 1:
        # The default intervals, which one attempt does not need, take four bytes less in the history of each step.
        return RetryPolicy(maximum_attempts=1)
    return RetryPolicy(
        initial_interval=TOOL_RETRY_FIRST, maximum_interval=TOOL_RETRY_LONGEST, maximum_attempts=attempts
    )


def share_of_results(calls: int, *, local: bool) -> int | None:
    """The limit, in bytes, of each result in a step of `calls` calls; None if the limit of a single result is enough."""
    share = (STEP_LOCAL_RESULTS_BYTES if local else STEP_RESULTS_BYTES) // max(1, calls)
    return share if share < RESULT_BYTES else None


def share_of_rest(used: int, calls: int) -> int | None:
    """The limit, in bytes, of each of `calls` results that come after others of `used` bytes; None if the limit of a single
    result is enough.
    """
    share = max(LEAST_SHARE, (STEP_RESULTS_BYTES - used) // max(1, calls))
    return share if share < RESULT_BYTES else None


def bytes_of(metadata: Mapping[str, str]) -> int:
    """About how many bytes a run's metadata has as JSON: each call's input contains it."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in metadata.items())


def metadata_bytes(run_input: RunInput) -> int:
    """The bytes of what a run's input has as metadata, the operator's and the client's."""
    return bytes_of(run_input.metadata) + bytes_of(run_input.client_metadata)


def max_scheduled_at_once(calls: int, run_input: RunInput, *, copies: int = 1) -> int:
    """How many of a step's calls may be scheduled at once: all of them, unless the run's metadata is very large.

    `copies`: how often the input of a call has the metadata.
    """
    return min(calls, max(1, COMMANDS_BYTES // (copies * metadata_bytes(run_input) + COMMAND_BYTES)))


def is_history_nearly_full() -> bool:
    """Whether the server might terminate the run during one more step."""
    info = workflow.info()
    return info.get_current_history_size() > HISTORY_BYTES or info.get_current_history_length() > HISTORY_EVENTS
