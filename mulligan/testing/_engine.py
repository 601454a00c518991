"""What a server does for workflow runs and their children, without a server: events in, commands out.

It chooses no order. `possible` tells what can happen to a run next; `deliver` lets it happen, and does what the workflow
commands then. `run_agent` delivers what is done (_ordered_run.py); tests/schedules explores all orders.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from temporalio.api.common.v1 import Payload

from mulligan.testing._activities import PAYLOADS, RUN_ID, cancelled
from mulligan.testing._workflow_run import WorkflowRun
from mulligan.wire.clean_up_request import CLEAN_UP
from mulligan.worker.sdk_workarounds.activation_messages import (
    ActivityResolution,
    CancelWorkflow,
    FireTimer,
    ResolveActivity,
    ResolveChildWorkflowExecution,
    ResolveChildWorkflowExecutionStart,
    ResolveSignalExternalWorkflow,
    SignalWorkflow,
    WorkflowActivationJob,
)
from mulligan.workflows.agent_workflow import AgentWorkflow
from mulligan.workflows.clean_up_workflow import CleanUpWorkflow

_NOTHING_FOLLOWS = {
    "set_patch_marker", "upsert_workflow_search_attributes", "modify_workflow_properties",
    "cancel_signal_workflow",  # the signal has been sent
}  # fmt: skip
_WAIT_FOR_CANCELLATION = 1


@dataclass
class Run:
    """A workflow id, and what is open in its newest run."""

    segments: list[WorkflowRun]
    is_started: bool = False
    status: str = ""
    """How it ended; "" while it has not."""
    result: Payload | None = None
    failure: Any = None
    activities: dict[int, tuple[Any, bool]] = field(default_factory=dict)
    """By number: the command, and whether it is local."""
    cancelling: set[int] = field(default_factory=set)
    """The activities whose end the workflow waits for, after it has cancelled them."""
    timers: dict[int, datetime] = field(default_factory=dict)
    children: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By number: the id, and what the parent knows: `initiated` or `started`."""
    signals: deque[Any] = field(default_factory=deque)
    signalled: dict[int, bool] = field(default_factory=dict)
    """Signals that this run has sent: whether they reached a run."""
    is_cancel_requested: bool = False

    @property
    def segment(self) -> WorkflowRun:
        """The newest run of the chain."""
        return self.segments[-1]


class Engine:
    """The runs of one workflow and of its children, by workflow id. `now`: their clock, which only timers move."""

    def __init__(
        self,
        kind: type,
        workflow_id: str,
        arguments: Sequence[Any],
        now: datetime,
        history_of: Callable[[Run], Mapping[str, Any]] = lambda _: {},
        features: tuple[type, ...] = (),
    ) -> None:
        """`history_of`: what the next activation of a run says about its history (fields of `WorkflowActivation`).

        `features`: those of loaded modules.
        """
        self.now = now
        self._history_of = history_of
        self.update_answers: list[tuple[int, Any]] = []
        """What workflows said of updates, with the number of the run in its chain: accepted, rejected or a result."""
        start = WorkflowRun(kind, workflow_id, 0, PAYLOADS.to_payloads(arguments), now, features=features)
        self.runs: dict[str, Run] = {workflow_id: Run([start])}
        self._kinds: dict[str, type] = {"AgentWorkflow": AgentWorkflow, CLEAN_UP: CleanUpWorkflow}
        self._kinds |= {start.definition.name or "": kind}

    def possible(self, key: str) -> Iterator[tuple[str, int]]:
        """All that can happen to a run now, as kind and number."""
        run = self.runs[key]
        if not run.is_started:
            yield "start", 0
        yield from (("activity", number) for number in run.activities)
        if run.timers:
            yield "timer", min(run.timers, key=lambda each: run.timers[each])
        for number, (child, state) in run.children.items():
            if state == "initiated":
                yield "child_start", number
            elif self.runs[child].status:
                yield "child", number
        yield from (("signalled", number) for number in run.signalled)
        if run.signals:
            yield "signal", 0
        if run.is_cancel_requested:
            yield "cancel", 0

    def job(self, key: str, kind: str, number: int, result: ActivityResolution | None = None) -> WorkflowActivationJob:
        """The job of an event that is possible, which then is not open any more. `result`: of an activity."""
        run = self.runs[key]
        match kind:
            case "start":
                run.is_started = True
                return run.segment.start_job()
            case "activity" if result is not None:
                _, is_local = run.activities.pop(number)
                run.cancelling.discard(number)
                return _resolved(number, result, is_local=is_local)
            case "timer":
                self.now = max(self.now, run.timers.pop(number))
                return WorkflowActivationJob(fire_timer=FireTimer(seq=number))
            case "child_start":
                run.children[number] = run.children[number][0], "started"
                started = ResolveChildWorkflowExecutionStart(seq=number)
                started.succeeded.run_id = RUN_ID
                return WorkflowActivationJob(resolve_child_workflow_execution_start=started)
            case "child":
                return _child_ended(number, self.runs[run.children.pop(number)[0]])
            case "signalled":
                resolved = ResolveSignalExternalWorkflow(seq=number)
                if not run.signalled.pop(number):
                    resolved.failure.message = "no such run"
                return WorkflowActivationJob(resolve_signal_external_workflow=resolved)
            case "signal":
                sent = run.signals.popleft()
                return signal_job(sent.signal_name, sent.args)
            case "cancel":
                run.is_cancel_requested = False
                return WorkflowActivationJob(cancel_workflow=CancelWorkflow())
        raise ValueError(kind)

    def deliver(self, key: str, jobs: Sequence[WorkflowActivationJob]) -> None:
        """Deliver jobs to a run in one workflow task, and take its commands."""
        run = self.runs[key]
        while jobs:
            commands = run.segment.activate(jobs, self.now, **self._history_of(run))
            jobs = [job for command in commands if (job := self._take(key, run, command)) is not None]
            if run.status or not run.is_started:  # it has ended, or continued as new
                return

    def _take(self, key: str, run: Run, command: Any) -> WorkflowActivationJob | None:
        """Take a command; returns what the server, or the Core SDK, answers at once."""
        kind = command.WhichOneof("variant")
        request = getattr(command, kind)
        match kind:
            case "schedule_activity" | "schedule_local_activity":
                run.activities[request.seq] = request, kind == "schedule_local_activity"
            case "request_cancel_activity" | "request_cancel_local_activity":
                return self._cancel_activity(run, request.seq)
            case "start_timer":
                run.timers[request.seq] = self.now + request.start_to_fire_timeout.ToTimedelta()
            case "cancel_timer":
                run.timers.pop(request.seq, None)
            case "start_child_workflow_execution":
                self._start_child(key, run, request)
            case "cancel_child_workflow_execution":
                self._cancel_child(run, request.child_workflow_seq)
            case "signal_external_workflow_execution":
                self._signal(run, request)
            case "update_response":
                self.update_answers.append((run.segment.number, request))
            case "continue_as_new_workflow_execution":
                self._continue_as_new(run, request)
            case "complete_workflow_execution" | "fail_workflow_execution" | "cancel_workflow_execution":
                self._end(run, kind, request)
            case _ if kind not in _NOTHING_FOLLOWS:
                raise RuntimeError(f"Without a server there is no {kind}: test this workflow on the embedded server.")
        return None

    def _cancel_activity(self, run: Run, number: int) -> WorkflowActivationJob | None:
        if number not in run.activities:
            return None
        request, is_local = run.activities[number]
        if request.cancellation_type == _WAIT_FOR_CANCELLATION:
            run.cancelling.add(number)
            return None
        del run.activities[number]
        return _resolved(number, cancelled(), is_local=is_local)

    def _start_child(self, key: str, run: Run, request: Any) -> None:
        kind = self._kinds.get(request.workflow_type)
        if kind is None:
            raise RuntimeError(
                f"Without a server there is no child workflow {request.workflow_type}: test it on the embedded server."
            )
        run.children[request.seq] = request.workflow_id, "initiated"
        segment = WorkflowRun(
            kind,
            request.workflow_id,
            0,
            request.input,
            self.now,
            caller=key,
            memo=dict(request.memo),
            features=run.segment.features,
        )
        self.runs[request.workflow_id] = Run([segment])

    def _cancel_child(self, run: Run, number: int) -> None:
        if number in run.children:  # else its end came in the same workflow task
            child = self.runs[run.children[number][0]]
            child.is_cancel_requested = not child.status

    def _signal(self, run: Run, request: Any) -> None:
        target = self.runs.get(request.child_workflow_id or request.workflow_execution.workflow_id)
        is_known = run.signalled[request.seq] = target is not None and not target.status
        if target is not None and is_known:
            target.signals.append(request)

    def _continue_as_new(self, run: Run, request: Any) -> None:
        old = run.segment
        new = dataclasses.replace(old, number=old.number + 1, arguments=request.arguments, recorded=[])
        run.segments.append(new)
        run.is_started = False
        assert not run.children, "a run that continues as new leaves its children"
        for open_work in (run.activities, run.cancelling, run.timers, run.signalled):
            open_work.clear()

    def _end(self, run: Run, kind: str, request: Any) -> None:
        run.status = {"complete": "completed", "fail": "failed", "cancel": "cancelled"}[kind.partition("_")[0]]
        if run.status == "completed":
            run.result = request.result
        elif run.status == "failed":
            run.failure = request.failure
        for number in run.children:
            self._cancel_child(run, number)


def signal_job(name: str, arguments: Sequence[Payload]) -> WorkflowActivationJob:
    """The job that delivers a signal."""
    signal = SignalWorkflow(signal_name=name, input=arguments, originating_event_id=1)
    return WorkflowActivationJob(signal_workflow=signal)


def _resolved(number: int, result: ActivityResolution, *, is_local: bool) -> WorkflowActivationJob:
    return WorkflowActivationJob(resolve_activity=ResolveActivity(seq=number, result=result, is_local=is_local))


def _child_ended(number: int, child: Run) -> WorkflowActivationJob:
    ended = ResolveChildWorkflowExecution(seq=number)
    if child.status == "completed":
        ended.result.completed.result.CopyFrom(child.result or Payload())
        return WorkflowActivationJob(resolve_child_workflow_execution=ended)
    failure = (ended.result.cancelled if child.status == "cancelled" else ended.result.failed).failure
    failure.message = "Child Workflow execution failed"
    failure.child_workflow_execution_failure_info.workflow_type.name = child.segment.definition.name or ""
    failure.child_workflow_execution_failure_info.workflow_execution.workflow_id = child.segment.workflow_id
    if child.status == "cancelled":
        failure.cause.canceled_failure_info.SetInParent()
    else:
        failure.cause.CopyFrom(child.failure)
    return WorkflowActivationJob(resolve_child_workflow_execution=ended)
