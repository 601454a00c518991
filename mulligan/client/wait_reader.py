"""What an open run waits for: read from its workflow, its pending activities, its sub-runs and its queue's pollers."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import PendingActivityState, TaskQueueType
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client.heartbeat_details import heartbeat_details
from mulligan.client.pollers import RECENT_POLL, last_polls
from mulligan.client.read_run import ask_once
from mulligan.client.served_agents import without_tag
from mulligan.client.sub_runs import open_children
from mulligan.features import all_words
from mulligan.schema.cut_text import beginning
from mulligan.values import WaitingFor
from mulligan.wire.agent_facts import OPEN_RUN
from mulligan.wire.event_types import INTERNAL_DETAILS
from mulligan.wire.model_call import CALL_MODEL
from mulligan.wire.times import iso
from mulligan.wire.tool_call import CALL_TOOL

REQUEST_TIMEOUT = timedelta(seconds=2.5)
"""For each request. A worker answers a query within milliseconds, unless it must replay a long history first."""
UNPOLLED_QUERY_TIMEOUT = timedelta(seconds=1.2)
"""For the query of a run whose task queue no worker has polled lately."""
QUEUE_CACHE_SECONDS = 2.0
"""How long the pollers of a queue are remembered, as all runs of a list usually have the same queue."""
MAX_TEXT_CHARS = 200
"""Characters of a failure's message, or of a heartbeat, that are shown."""
_LAST_SECOND = 253_402_300_800
"""Seconds since the epoch until the year 10000: no datetime is later."""
MOST_SUB_RUNS = 50
"""How many sub-runs are looked at for one run, on all levels."""
SUB_RUNS_SECONDS = 4.0
"""For all sub-runs of a run together. What they wait for is left out if it takes longer."""
SHOWN_SUB_RUNS = 3
"""Sub-runs that the sentence for people describes."""
_CLOCK_TOLERANCE = timedelta(milliseconds=2)
_ACTIVITY_OF_KIND = {
    "model": (CALL_MODEL, *all_words().model_calls),
    "tool": (CALL_TOOL,),
    "worker": (OPEN_RUN,),
}


@dataclass(frozen=True, kw_only=True)
class PendingActivity:
    """What Temporal knows of an activity that has not ended. `max_attempts`: 0 is no limit."""

    activity: str
    scheduled: datetime
    number: int = 0
    """Its place in the order in which the activities were scheduled."""
    is_started: bool = True
    attempt: int = 1
    max_attempts: int = 0
    last_failure: str = ""
    next_attempt: datetime | None = None
    first_failure: datetime | None = None
    heartbeat: str = ""
    task_queue: str = ""


class WaitReader:
    """Reads what runs wait for. Each request has a time limit, so that a run without workers is reported within 3 s.

    A run that waits for a sub-agent waits for what the sub-agent's run waits for, at any level. `most_sub_runs`: how many
    of these are looked at for one run.
    """

    def __init__(self, client: Client, most_sub_runs: int = MOST_SUB_RUNS) -> None:
        self._client = client
        self._most_sub_runs = most_sub_runs
        self.last_progress: dict[str, Any] | None = None
        """The answer of the query `progress` that was read last."""
        self._polls: dict[tuple[str, TaskQueueType.ValueType], tuple[float, list[datetime]]] = {}

    async def read(self, workflow_id: str, conversation: str | None = None) -> WaitingFor | None:
        """What the run waits for; None if it is closed, has only work of its own to do, or Temporal does not answer.

        `conversation`: the agent's number, in a workflow with several.
        """
        waiting, progress = await self._read(workflow_id, conversation, _Allowance(self._most_sub_runs))
        self.last_progress = progress if progress is not None else self.last_progress
        return waiting

    async def read_or_none(self, workflow_id: str) -> WaitingFor | None:
        """Read what the run waits for; None also if the run is gone, or cannot be decrypted here."""
        try:
            return await self.read(workflow_id)
        except (RPCError, ValueError, KeyError):
            return None

    async def _read(
        self, workflow_id: str, conversation: str | None, allowance: _Allowance
    ) -> tuple[WaitingFor | None, dict[str, Any] | None]:
        """What a run waits for, and the answer of its query `progress`, if it was read."""
        handle = self._client.get_workflow_handle(workflow_id)
        progress: dict[str, Any] | None = None
        try:
            run = await handle.describe(rpc_timeout=REQUEST_TIMEOUT)
            if run.status != WorkflowExecutionStatus.RUNNING:
                return None, None
            polls = await self._polls_of(run.task_queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW)
            # A worker may poll another partition of the queue than the described one, so that the query decides.
            patience = REQUEST_TIMEOUT if polls else UNPOLLED_QUERY_TIMEOUT
            progress = await _progress(handle, conversation, patience.total_seconds())
            if progress is None:
                return no_worker(run.task_queue, polls, run.start_time), None
            if not isinstance(progress.get("waiting_for"), dict):
                return None, progress
            waiting = await self._merged(run, WaitingFor.model_validate(progress["waiting_for"]))
            if waiting.kind == "tool":
                waiting = await self._with_sub_runs(waiting, run, progress, allowance)
            return waiting, progress
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                raise
            return None, progress

    async def _merged(self, run: WorkflowExecutionDescription, waiting: WaitingFor) -> WaitingFor:
        raw = run.raw_description
        if any(f"(run {child.workflow_id})" in waiting.detail for child in raw.pending_children):
            return waiting
        calls = [await self._pending_call(activity) for activity in raw.pending_activities]
        call = _find(waiting, calls)
        if call is not None and not call.is_started and call.next_attempt is None and call.task_queue:
            polls = await self._polls_of(call.task_queue, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)
            is_new = datetime.now(UTC) - call.scheduled < UNPOLLED_QUERY_TIMEOUT
            if not is_new and not _recent(polls):
                return no_worker(call.task_queue, polls, call.scheduled)
        return merge(waiting, calls)

    async def _with_sub_runs(
        self,
        waiting: WaitingFor,
        run: WorkflowExecutionDescription,
        progress: dict[str, Any],
        allowance: _Allowance,
    ) -> WaitingFor:
        """What the run waits for, with what the sub-runs wait for that it waits for."""
        children = open_children(run)
        looked_at = allowance.take(children)
        if not looked_at:
            return waiting

        async def read(child: str) -> WaitingFor | None:
            try:
                return (await self._read(child, None, allowance))[0]
            except (RPCError, ValueError, KeyError):
                return None  # it has ended in the meantime, or cannot be decrypted here

        try:
            async with asyncio.timeout(SUB_RUNS_SECONDS):
                waits = await asyncio.gather(*map(read, looked_at))
        except TimeoutError:
            return waiting
        is_alone = len(looked_at) == len(children) >= len(progress.get("running") or ())
        return merge_sub_runs(waiting, dict(zip(looked_at, waits, strict=True)), is_alone=is_alone)

    async def _polls_of(self, queue: str, kind: TaskQueueType.ValueType) -> list[datetime]:
        """When each worker polled the queue last, as far as Temporal remembers; the latest first."""
        now = asyncio.get_running_loop().time()
        cached = self._polls.get((queue, kind))
        if cached is not None and now - cached[0] < QUEUE_CACHE_SECONDS:
            return cached[1]
        polls = list((await last_polls(self._client, queue, kind, REQUEST_TIMEOUT)).values())
        self._polls[queue, kind] = now, polls
        return polls

    async def _pending_call(self, activity: PendingActivityInfo) -> PendingActivity:
        details = await self._heartbeat_details(activity)
        is_model = activity.activity_type.name in _ACTIVITY_OF_KIND["model"]
        first = details[0] if is_model and details and isinstance(details[0], int | float) else None
        first = first if first is not None and 0 < first < _LAST_SECOND else None
        is_started = activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
        next_attempt = _time(activity, "next_attempt_schedule_time")
        return PendingActivity(
            activity=activity.activity_type.name,
            scheduled=activity.scheduled_time.ToDatetime(tzinfo=UTC),
            number=int(activity.activity_id) if activity.activity_id.isdecimal() else 0,
            is_started=is_started,
            attempt=activity.attempt,
            max_attempts=activity.maximum_attempts,
            last_failure=await self._failure_text(activity),
            next_attempt=next_attempt if not is_started else None,
            first_failure=datetime.fromtimestamp(first, UTC) if first is not None else None,
            heartbeat=_one_line(_as_text(details[-1])) if details and not is_model else "",
            task_queue=activity.activity_options.task_queue.name,
        )

    async def _heartbeat_details(self, activity: PendingActivityInfo) -> list[Any]:
        details = await heartbeat_details(self._client, activity)
        return [each for each in details if not (isinstance(each, dict) and INTERNAL_DETAILS & each.keys())]

    async def _failure_text(self, activity: PendingActivityInfo) -> str:
        """The message of the last attempt's failure in one line; empty if there was none."""
        if not activity.HasField("last_failure"):
            return ""
        failure = activity.last_failure
        if failure.HasField("timeout_failure_info"):
            return "its worker stopped answering" if "eartbeat" in failure.message else "it ran out of time"
        try:
            error = await self._client.data_converter.decode_failure(failure)
        except (KeyError, ValueError, RuntimeError):
            return "it cannot be decrypted here"
        return _one_line(getattr(error, "message", "") or str(error))


def merge(waiting: WaitingFor, calls: Sequence[PendingActivity]) -> WaitingFor:
    """What the workflow says that it waits for, and what Temporal knows of the activity: attempt, failure, heartbeat.

    `calls`: the pending activities of the run, with times of the server.
    """
    call = _find(waiting, calls)
    if call is None:
        return waiting
    parts = [waiting.detail]
    update: dict[str, Any] = {}
    if call.attempt > 1:
        update["attempt"] = call.attempt
        parts.append(f"attempt {call.attempt}" + (f" of {call.max_attempts}" if call.max_attempts else ""))
    if call.last_failure:
        update["last_failure"] = call.last_failure
        parts.append(f"last failure: {call.last_failure.rstrip('.')}")
    if call.next_attempt is not None:
        update["next_attempt"] = iso(call.next_attempt)
        parts.append(f"next attempt at {_clock(call.next_attempt)}")
    if call.first_failure is not None and waiting.retried_for is not None:
        until = call.first_failure + timedelta(seconds=waiting.retried_for)
        update["until"] = iso(until)
        parts.append(f"retried until {_clock(until)}")
    if call.heartbeat:
        update["last_heartbeat"] = call.heartbeat
        parts.append(f"last heartbeat: {call.heartbeat}")
    if not call.is_started and call.attempt <= 1:
        parts.append(f"not started yet (task queue {call.task_queue!r})")
    return waiting.model_copy(update={**update, "detail": "; ".join(parts)})


def merge_sub_runs(waiting: WaitingFor, sub_runs: Mapping[str, WaitingFor | None], *, is_alone: bool) -> WaitingFor:
    """What a run waits for, where some of its running calls are sub-agents' runs.

    Args:
        waiting: What the workflow says itself.
        sub_runs: What each of the sub-runs waits for, by its id; None if that is not known.
        is_alone: Whether the run waits for nothing but these.

    Returns:
        The wait of the sub-run, with its id in `run`, if the run waits for nothing else, or if all sub-runs wait for
        people. Otherwise `waiting`, with the sub-runs in its `detail`. Those that wait for people are first.
    """
    known = [_of_sub_run(run_id, wait) for run_id, wait in sub_runs.items() if wait is not None]
    if not known:
        return waiting
    known.sort(key=lambda wait: (wait.kind != "person", wait.since))
    details = [wait.detail for wait in known[:SHOWN_SUB_RUNS]]
    if len(known) > SHOWN_SUB_RUNS:
        details.append(f"and {len(known) - SHOWN_SUB_RUNS} more sub-agents' runs")
    is_one = len(sub_runs) == 1 or (len(known) == len(sub_runs) and known[-1].kind == "person")
    if is_alone and is_one:
        return known[0].model_copy(update={"detail": "; ".join(details)})
    return waiting.model_copy(update={"detail": "; ".join([waiting.detail, *details])})


def _of_sub_run(run_id: str, wait: WaitingFor) -> WaitingFor:
    """The wait of a sub-run as it is shown for its calling run. One that waits for a sub-run of its own is shown as is."""
    if wait.run is not None:
        return wait
    return wait.model_copy(update={"run": run_id, "detail": f"sub-agent's run {run_id}: {wait.detail}"})


class _Allowance:
    """How many more sub-runs may be looked at."""

    def __init__(self, runs: int) -> None:
        self._runs = runs

    def take(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Return as many of the runs as are still allowed, and count them."""
        taken = run_ids[: self._runs]
        self._runs -= len(taken)
        return taken


class _WithoutWorker(WaitingFor):
    """The wait of a run for which no worker of its task queue answers."""


def no_worker(task_queue: str, polls: Sequence[datetime], since: datetime) -> WaitingFor:
    """The wait for a worker of a queue.

    Args:
        task_queue: the queue.
        polls: when each of its workers polled last, the latest first. A worker that was killed is among them for minutes.
        since: since when the run waits, if no worker has polled.
    """
    queue = without_tag(task_queue)
    option = f" --task-queue {shlex.quote(queue)}" if queue != "agents" else ""
    start = f"start one: mulligan worker{option} --load …"
    is_own = queue == task_queue
    of_queue = f"task queue {queue!r}" if is_own else repr(queue)
    of_agent = "" if is_own else " that serves the agent"
    last = _clock(polls[0]) if polls else ""
    recent = len(_recent(polls))
    if recent > 1:
        detail = (
            f"no worker{of_agent} has answered yet, but {recent} have polled {of_queue} within the last "
            f"{RECENT_POLL.total_seconds():.0f} s: if one of them has died, another takes its runs over within about 10 s"
        )
    elif recent:
        detail = (
            f"no worker{of_agent} answers; the only one of {of_queue} polled at {last}, and is busy, or has ended; "
            f"if it has ended, {start}"
        )
    else:
        seen = f" (the last one was seen at {last})" if last else ""
        detail = f"no worker{of_agent} polls {of_queue}{seen}; {start}"
    return (_WithoutWorker if is_own else WaitingFor)(
        kind="worker", since=iso(polls[0] if polls else since), detail=detail
    )


def is_without_worker(waiting: WaitingFor | None) -> bool:
    """Whether a run waits because no worker answers for it, so that its queries would only time out."""
    return isinstance(waiting, _WithoutWorker) and waiting.run is None


def _find(waiting: WaitingFor, calls: Sequence[PendingActivity]) -> PendingActivity | None:
    """The activity that the workflow waits for: the first of its kind that was scheduled since then."""
    since = datetime.fromisoformat(waiting.since) - _CLOCK_TOLERANCE
    activities = _ACTIVITY_OF_KIND.get(waiting.kind, ())
    candidates = [call for call in calls if call.activity in activities and call.scheduled >= since]
    return min(candidates, key=lambda call: (call.scheduled, call.number), default=None)


async def _progress(
    handle: WorkflowHandle[Any, Any], conversation: str | None, seconds: float
) -> dict[str, Any] | None:
    """The answer of the query `progress`; None if no worker answers in time. Empty if the workflow has no such query."""
    args = [] if conversation is None else [conversation]
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    answer: dict[str, Any] = await ask_once(handle, "progress", *args, timeout=REQUEST_TIMEOUT)
                    return answer
                except WorkflowQueryFailedError:
                    return {}
                except RPCError as error:
                    if error.status == RPCStatusCode.NOT_FOUND:
                        raise
                    # A run whose first workflow task has not completed refuses queries at once.
                    await asyncio.sleep(0.3)
    except TimeoutError:
        return None


def _recent(polls: Sequence[datetime]) -> list[datetime]:
    """The last polls of the workers that may still poll."""
    oldest = datetime.now(UTC) - RECENT_POLL
    return [each for each in polls if each > oldest]


def _time(message: PendingActivityInfo, field: str) -> datetime | None:
    """A time in the future; None if the field is not set, or the time has passed."""
    if not message.HasField(field):  # type: ignore[arg-type]
        return None
    value: Timestamp = getattr(message, field)
    at = value.ToDatetime(tzinfo=UTC)
    return at if at > datetime.now(UTC) else None


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _one_line(text: str) -> str:
    return beginning(" ".join("".join(char if char.isprintable() else " " for char in text).split()), MAX_TEXT_CHARS)


def _clock(at: datetime) -> str:
    """A time of day, with the date unless it is today."""
    utc = at.astimezone(UTC)
    is_today = utc.date() == datetime.now(UTC).date()
    return utc.strftime("%H:%M:%S UTC" if is_today else "%Y-%m-%d %H:%M:%S UTC")
