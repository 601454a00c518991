"""Tells the server what was lost with a worker process, so that it need not wait for a timeout.

The server decides: it refuses to fail an attempt, or a workflow task, that it has already a result of. Three things keep a
run waiting, and each is ended here:

- An attempt of an activity in the dead process: its heartbeat timeout is 5 s. The supervisor knows the task tokens. Attempts
  that the server had sent but that no code had seen are found as pending activities of the dead process's identity.
- A workflow task in the dead process: its timeout is 10 s. `workflow_tasks.py` fails it.
- The run's next workflow task: it would wait 2 s for the dead process, which has the run in its cache.

The processes tell the supervisor which runs they handle. A new run, whose first task only the server knows, is found in the
list of runs.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.enums.v1 import (
    EventType,
    PendingActivityState,
    PendingWorkflowTaskState,
    WorkflowExecutionStatus,
)
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import PendingActivityInfo, PendingWorkflowTaskInfo
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryReverseRequest,
    ListWorkflowExecutionsRequest,
    ResetStickyTaskQueueRequest,
    RespondActivityTaskFailedByIdRequest,
    RespondActivityTaskFailedRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from mulligan.activities.heartbeat import ended_details
from mulligan.client.heartbeat_details import heartbeat_details
from mulligan.client.read_run import PROCESS_DIED
from mulligan.client.served_agents import without_tag
from mulligan.client.unless_missing import MISSING_OR_INVALID, unless_missing
from mulligan.observe.semconv import WORKER_LOST
from mulligan.supervisor.worker_process import Attempt, WorkerProcess
from mulligan.supervisor.workflow_tasks import (
    Run,
    TokenFormat,
    fail_queued_task,
    fail_task_of_dead_process,
    started_task,
    sticky_queue,
)
from mulligan.worker.supervisor_link import RUN_AGAIN_AFTER

NO_BACK_OFF_ATTEMPTS = 4
"""An attempt after this one waits before the next: it may be what kills the processes. A replacement is cheap (0.2 s of
CPU), and processes that are killed for other reasons may hit the same call several times in a row."""
NO_DELAY = timedelta(milliseconds=1)
FIRST_BACK_OFF, LONGEST_BACK_OFF = timedelta(seconds=0.5), timedelta(seconds=30)
"""The wait doubles. It is shorter than the retry policies', which are made for failures of providers and tools."""
ACTIVE_SECONDS = 15.0
"""Runs that a process has handled within this time may have a workflow task in flight."""
CHECKS_AFTER = (0.1, 0.2, 0.4, 0.8, 1.5, 3.0)
"""Seconds between one look for work that no code had seen, and the next: the server may still send some to the dead process
before it knows that the connection has ended."""
AT_ONCE = 32
"""How many calls to the server run at the same time."""
NEWEST = ""
"""In place of a run id: the newest run of the workflow."""
MARKER_EVENTS = 100
"""How many of a run's last events are searched for the result of a local activity that ended less than a second ago."""
MAX_NEW_RUNS = 200
"""How many of the newest runs are looked at for a first task that no code had seen."""
SENT_AFTER_DEATH = timedelta(seconds=0.5)
"""For so long the server may hand tasks to polls of a process that is dead."""
TIME_TO_COMPLETE = timedelta(seconds=0.6)
"""A workflow task that nobody is known to have is failed if it is not completed in this time. Most take a tenth of it."""
CALL_TIMEOUT = timedelta(seconds=10)
_MAY_BE_STARTED = (
    PendingActivityState.PENDING_ACTIVITY_STATE_STARTED,
    # The server refuses to fail an activity that waits for its next attempt.
    PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED,
)
_unless_gone = partial(unless_missing, missing=MISSING_OR_INVALID)


@dataclass(frozen=True)
class LostWork:
    """What a dead process may have had in flight."""

    identity: str
    """Of the process's polls."""
    reason: str
    """How the process ended."""
    attempts: tuple[Attempt, ...]
    """Those that ran, and then those that had ended so lately that the server may not know it."""
    in_flight: frozenset[int]
    """The numbers of those that ran."""
    undecided: frozenset[int]
    """The numbers of the attempts whose spans depend on what the server knows."""
    not_lost: frozenset[tuple[Run, str, int]]
    """Attempts that will be completed: by another program, or by this process, if it drains."""
    cached: tuple[Run, ...]
    """The runs whose workflow tasks no other process has handled since, the most recent first: they are in its cache."""
    active: tuple[Run, ...]
    """The runs that any process of the supervisor has handled lately."""
    token_format: TokenFormat | None
    """None if the tokens of workflow tasks cannot be made."""
    is_draining: bool = False
    """Whether the process has not died, but stops."""
    occupied: frozenset[Run] = frozenset()
    """The runs whose workflow task a draining process works on."""

    @staticmethod
    def of_draining(process: WorkerProcess, all_processes: Sequence[WorkerProcess]) -> LostWork:
        """What the server may have handed to polls that a process has ended, and no code of it has seen.

        What the process has begun is not lost: it completes it.
        """
        lost = LostWork.of(process, all_processes, frozenset(), "it had been told to stop, and had not begun this")
        begun = frozenset((each.run, each.activity_id, each.attempt) for each in lost.attempts if each.token)
        return replace(
            lost,
            attempts=(),
            in_flight=frozenset(),
            is_draining=True,
            not_lost=lost.not_lost | begun,
            occupied=frozenset(each.run for each in process.in_flight() if not each.token),
        )

    @staticmethod
    def of(
        process: WorkerProcess,
        all_processes: Sequence[WorkerProcess],
        undecided: frozenset[int],
        reason: str,
        *,
        lost_lately: Iterable[Run] = (),
    ) -> LostWork:
        """Collect the work by what the process has sent. `lost_lately`: the runs of processes that have died lately.

        Their attempts may have been sent to this process, and no code of it may have seen them.
        """
        attempts, recent = process.in_flight(), process.recently_finished()
        since = time.monotonic() - ACTIVE_SECONDS
        of_attempts = [each.run for each in (*attempts, *recent)]
        others = [each.tasks for each in all_processes if each is not process]
        cached = [
            run
            for run, at in reversed(process.runs.items())
            if at >= max((tasks.get(run, 0.0) for tasks in others), default=0)
        ]
        active = [run for each in (process, *all_processes) for run, at in each.runs.items() if at > since]
        return LostWork(
            identity=process.identity,
            reason=reason,
            attempts=(*attempts, *recent),
            in_flight=frozenset(each.number for each in attempts),
            undecided=undecided,
            not_lost=frozenset(process.completed_elsewhere),
            cached=tuple(cached),
            active=tuple(dict.fromkeys([*of_attempts, *active, *lost_lately])),
            token_format=next((each.token_format for each in all_processes if each.token_format), process.token_format),
        )


class LostWorkReport:
    """Reports the lost work of one process.

    Args:
        client: of the namespace.
        lost: what may be lost.
        is_handled: whether a living process of the supervisor may have handled workflow tasks of the run since that time, by
            `time.monotonic`.
    """

    def __init__(
        self, client: Client, lost: LostWork, is_handled: Callable[[Run, float], bool] = lambda *_: False
    ) -> None:
        self._client = client
        self._service = client.workflow_service
        self._lost = lost
        self._is_handled = is_handled
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._cached = frozenset(lost.cached)
        self._counts: dict[int, bool] = {}
        self._failure_of_task = Failure(
            message=f"{PROCESS_DIED} ({lost.reason}).",
            source="mulligan",
            application_failure_info=ApplicationFailureInfo(type=WORKER_LOST),
        )
        self._in_flight: defaultdict[Run, list[Attempt]] = defaultdict(list)
        self._undecided: dict[tuple[Run, str, int], Attempt] = {}
        for each in lost.attempts:
            if each.token and each.number in lost.undecided:
                self._undecided[each.run, each.activity_id, each.attempt] = each
            elif each.token and each.number in lost.in_flight:
                self._in_flight[each.run].append(each)
        self._died_at = datetime.now(UTC)
        self._drained: set[str] = set()
        self._polls: set[asyncio.Task[None]] = set()

    async def report(self) -> dict[int, bool]:
        """Report attempts and workflow tasks; returns whether the server has the result of each undecided attempt."""
        self._counts = {each.number: True for each in self._undecided.values()}
        await self._all(self._report_run(run) for run in self._lost.active)
        undecided = [each for each in self._lost.attempts if not each.token and each.number in self._lost.undecided]
        await self._all(self._look_for_marker(attempt) for attempt in undecided)
        return self._counts

    async def look_again(self) -> None:
        """Look for work that the server sends to the dead process before it knows that the connection has ended."""
        active = set(self._lost.active)
        await self._all(self._report_run(run) for run in self._lost.cached if run not in active)
        for seconds in CHECKS_AFTER:
            await asyncio.sleep(seconds)
            await self.look_for_unseen()

    async def look_for_unseen(self) -> None:
        """Fail what the server believes to be in the process, and what no code of it has reported."""
        runs = dict.fromkeys([*self._lost.active, *await self._new_runs()])
        await self._all(self._check(run, is_first=False) for run in runs)

    async def aclose(self) -> None:
        """Wait for the polls that run, at most some seconds: a cancelled poll could take a task with it."""
        if self._polls:
            await asyncio.wait(self._polls)

    async def _all(self, calls: Iterable[Awaitable[None]]) -> None:
        async def with_slot(call: Awaitable[None]) -> None:
            async with self._slots:
                await call

        # Each run is reported, also where the server did not answer for another one.
        ended = await asyncio.gather(*(with_slot(call) for call in calls), return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error

    async def _report_run(self, run: Run) -> None:
        await self._reset_sticky(run)
        for attempt in self._in_flight[run]:
            await self._fail(attempt)
        await self._check(run)

    async def _reset_sticky(self, run: Run) -> None:
        """Let the run's next workflow task go to any worker, if the dead one has the run in its cache."""
        if run in self._cached:
            request = ResetStickyTaskQueueRequest(namespace=self._client.namespace, execution=_execution(run))
            await _unless_gone(self._service.reset_sticky_task_queue(request, retry=True, timeout=CALL_TIMEOUT))

    async def _fail(self, attempt: Attempt, *, details: Payloads | None = None) -> bool:
        """Fail an attempt, and no other one of its activity. Returns whether the server still waited for it.

        `details`: those of its last heartbeat, which the next attempt gets; what the server has if None.
        """
        request = RespondActivityTaskFailedRequest(
            namespace=self._client.namespace,
            task_token=base64.b64decode(attempt.token),
            failure=self._failure(attempt.attempt),
            identity=self._lost.identity,
            last_heartbeat_details=details,
        )
        call = self._service.respond_activity_task_failed(request, retry=True, timeout=CALL_TIMEOUT)
        return await self._is_taken(call, attempt.run)

    async def _is_taken(self, call: Awaitable[object], run: Run) -> bool:
        if await _unless_gone(call) is not None:
            return True
        # After a refusal the server reads the run from its database, which has no record of the reset yet.
        await self._reset_sticky(run)
        return False

    async def _check(self, run: Run, *, is_first: bool = True) -> None:
        """Fail what the server believes to be in the dead process."""
        described = await self._describe(run)
        if described is None:
            return
        info = described.workflow_execution_info
        if info.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW:
            # The process may have got the first task of the run that follows, and no code has seen it.
            await self._check(Run(run.workflow_id, NEWEST), is_first=is_first)
            return
        if run.run_id == NEWEST:
            run = Run(run.workflow_id, info.execution.run_id)
            if run in self._lost.active:
                return
        for pending in described.pending_activities:
            key = run, pending.activity_id, pending.attempt
            if self._is_in_dead_process(pending) and key not in self._lost.not_lost:
                await self._fail_pending(run, pending)
        task = described.pending_workflow_task
        if run in self._lost.occupied:
            return
        if task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED:
            await self._fail_started_task(run, task, is_first=is_first)
        elif (
            task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED and not self._lost.is_draining
        ):
            await self._drain_sticky_queue(run)

    async def _fail_pending(self, run: Run, pending: PendingActivityInfo) -> None:
        undecided = self._undecided.get((run, pending.activity_id, pending.attempt))
        has_ended = undecided is not None and await self._has_reported_its_end(pending)
        if undecided is not None:
            # By its token, which names the attempt: the next one may have begun since the server was asked. And with the
            # details that `has_ended` is about: the process may have sent others, which the server takes in this moment.
            is_failed = await self._fail(undecided, details=pending.heartbeat_details)
        else:
            request = RespondActivityTaskFailedByIdRequest(
                namespace=self._client.namespace,
                workflow_id=run.workflow_id,
                run_id=run.run_id,
                activity_id=pending.activity_id,
                failure=await self._failure_of_unseen(pending),
                identity=self._lost.identity,
            )
            call = self._service.respond_activity_task_failed_by_id(request, retry=True, timeout=CALL_TIMEOUT)
            is_failed = await self._is_taken(call, run)
        if is_failed and undecided is not None:
            self._counts[undecided.number] = has_ended

    async def _failure_of_unseen(self, pending: PendingActivityInfo) -> Failure:
        """The failure of an attempt that no code has seen. It says which earlier attempts have their spans.

        The workflow needs to know if no later attempt could write them.
        """
        failure, details = self._failure(pending.attempt), await self._details(pending)
        written = max((n for n in range(1, pending.attempt) if ended_details(n) in details), default=0)
        encoded = await self._client.data_converter.encode([ended_details(written)])
        failure.application_failure_info.details.payloads.extend(encoded)
        return failure

    async def _details(self, pending: PendingActivityInfo) -> list[Any]:
        return await heartbeat_details(self._client, pending)

    async def _has_reported_its_end(self, pending: PendingActivityInfo) -> bool:
        """Whether the attempt's last heartbeat says that it has ended: then the next attempt does not write its span."""
        return ended_details(pending.attempt) in await self._details(pending)

    async def _fail_started_task(self, run: Run, pending: PendingWorkflowTaskInfo, *, is_first: bool) -> None:
        task = started_task(await self._last_events(run, 1), pending.attempt)
        if (
            task is None
            or self._lost.token_format is None
            or without_tag(task.identity) not in ("", self._lost.identity)
        ):
            return
        # Whose task it is cannot be known if the history does not have it. Later, another process has taken the run over.
        is_own = bool(task.identity) or (is_first and run in self._cached)
        if not is_own and not self._is_abandoned(run, pending):
            return
        call = fail_task_of_dead_process(
            self._client, self._lost.token_format, run, task, failure=self._failure_of_task
        )
        if await _unless_gone(call) is None:
            await self._reset_sticky(run)

    def _is_abandoned(self, run: Run, pending: PendingWorkflowTaskInfo) -> bool:
        """Whether a task of an unknown worker was started before the death, and no living process completes it.

        If a worker that is not of this supervisor works on it after all, the server refuses its result, and the task is
        done once more.
        """
        now, started = datetime.now(UTC), pending.started_time.ToDatetime(UTC)
        if now < self._died_at + TIME_TO_COMPLETE or started > self._died_at + SENT_AFTER_DEATH:
            return False
        since = time.monotonic() - (now - started).total_seconds() - RUN_AGAIN_AFTER
        return not self._is_handled(run, since)

    async def _drain_sticky_queue(self, run: Run) -> None:
        """Return the workflow tasks that wait in the dead process's own queue; they would wait for 2 s."""
        queue = sticky_queue(await self._last_events(run, 1))
        # The name begins with the identity, and maybe a tag.
        own = f"{self._lost.identity}-", f"{self._lost.identity}#"
        if queue is None or not queue.name.startswith(own) or queue.name in self._drained:
            return
        self._drained.add(queue.name)
        # In the background: the last poll finds nothing and takes two seconds, for which nothing else may wait.
        poll = asyncio.create_task(self._return_tasks(queue))
        self._polls.add(poll)
        poll.add_done_callback(self._polls.discard)

    async def _return_tasks(self, queue: TaskQueue) -> None:
        with suppress(RPCError):  # the run that was asked for waits for the timeout, or the next check tries again
            while await fail_queued_task(self._client, queue, failure=self._failure_of_task):
                pass
        self._drained.discard(queue.name)

    async def _look_for_marker(self, attempt: Attempt) -> None:
        """Whether the history has the result of a local activity: if not, its workflow task runs it again."""
        events = await self._last_events(attempt.run, MARKER_EVENTS)
        self._counts[attempt.number] = any(_local_activity_of(event) == attempt.activity_id for event in events)

    async def _new_runs(self) -> list[Run]:
        """The newest open runs of the namespace; the identities of their tasks tell which are in the dead process."""
        since = (self._died_at - timedelta(seconds=ACTIVE_SECONDS)).isoformat()
        request = ListWorkflowExecutionsRequest(
            namespace=self._client.namespace,
            query=f"ExecutionStatus = 'Running' AND StartTime >= '{since}'",
            page_size=MAX_NEW_RUNS,
        )
        try:
            page = await self._service.list_workflow_executions(request, timeout=CALL_TIMEOUT)
        except RPCError:  # a first task waits for its timeout then, and nothing else may wait for the list
            return []
        return [Run(each.execution.workflow_id, each.execution.run_id) for each in page.executions]

    async def _describe(self, run: Run) -> DescribeWorkflowExecutionResponse | None:
        request = DescribeWorkflowExecutionRequest(namespace=self._client.namespace, execution=_execution(run))
        return await _unless_gone(self._service.describe_workflow_execution(request, retry=True, timeout=CALL_TIMEOUT))

    async def _last_events(self, run: Run, most: int) -> Sequence[HistoryEvent]:
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=self._client.namespace, execution=_execution(run), maximum_page_size=most
        )
        page = await _unless_gone(
            self._service.get_workflow_execution_history_reverse(request, retry=True, timeout=CALL_TIMEOUT)
        )
        return page.history.events if page is not None else ()

    def _is_in_dead_process(self, pending: PendingActivityInfo) -> bool:
        return pending.state in _MAY_BE_STARTED and without_tag(pending.last_worker_identity) == self._lost.identity

    def _failure(self, attempt: int) -> Failure:
        info = ApplicationFailureInfo(type=WORKER_LOST)
        info.next_retry_delay.FromTimedelta(_back_off(attempt))
        return Failure(message=self._failure_of_task.message, source="mulligan", application_failure_info=info)


def _back_off(attempt: int) -> timedelta:
    """Until the attempt after a lost one. `attempt`: from 1."""
    doublings = attempt - NO_BACK_OFF_ATTEMPTS - 1
    return NO_DELAY if doublings < 0 else min(FIRST_BACK_OFF * 2 ** min(doublings, 10), LONGEST_BACK_OFF)


def _execution(run: Run) -> WorkflowExecution:
    return WorkflowExecution(workflow_id=run.workflow_id, run_id=run.run_id)


def _local_activity_of(event: HistoryEvent) -> str | None:
    """The id of the local activity whose result the event records."""
    if event.event_type != EventType.EVENT_TYPE_MARKER_RECORDED:
        return None
    for payload in event.marker_recorded_event_attributes.details["data"].payloads:
        try:
            data = json.loads(payload.data)
        except ValueError:
            continue
        if isinstance(data, dict) and "activity_id" in data:
            return str(data["activity_id"])
    return None
