"""A run, its sub-agents and all that may happen to them next. One thing happens at a time, or two in one workflow task."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.activity_result import ActivityResolution
from temporalio.bridge.proto.workflow_activation import (
    CancelWorkflow,
    DoUpdate,
    FireTimer,
    ResolveActivity,
    ResolveChildWorkflowExecution,
    ResolveChildWorkflowExecutionStart,
    ResolveSignalExternalWorkflow,
    SignalWorkflow,
    WorkflowActivationJob,
)

from mulligan.testing._activities import PAYLOADS, RUN_ID, cancelled
from tests.schedules.cases import Case, Sent
from tests.schedules.real_activities import RealActivities
from tests.schedules.simulated_run import BEGIN, Segment

ROOT = "run"
_NOTHING_FOLLOWS = {
    "set_patch_marker", "upsert_workflow_search_attributes", "modify_workflow_properties",
    "cancel_signal_workflow",  # the signal has been sent
}  # fmt: skip
_WAIT_FOR_CANCELLATION = 1


class Event(NamedTuple):
    """Something that can happen to a run. Events have the same names in each schedule."""

    run: str
    kind: str
    number: int = 0
    how: str = ""
    second: tuple[str, int, str] | None = None
    """Kind, number and `how` of an event that is delivered in the same workflow task."""


@dataclass
class Run:
    """A workflow id, and what is open in its newest run."""

    segments: list[Segment]
    is_started: bool = False
    status: str = ""
    """How it ended; "" while it has not."""
    result: Any = None
    failure: Any = None
    activities: dict[int, tuple[Any, bool]] = field(default_factory=dict)
    """By number: the command, and whether it is local."""
    cancelling: set[int] = field(default_factory=set)
    timers: dict[int, datetime] = field(default_factory=dict)
    children: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By number: the id, and what the parent knows: `initiated` or `started`."""
    signals: deque[Any] = field(default_factory=deque)
    signalled: dict[int, bool] = field(default_factory=dict)
    """Signals that this run has sent: whether they reached a run."""
    is_cancel_requested: bool = False
    parent: tuple[str, int] | None = None

    @property
    def segment(self) -> Segment:
        """The newest run of the chain."""
        return self.segments[-1]


class World:
    """The state of one schedule."""

    def __init__(self, case: Case, activities: RealActivities) -> None:
        self.case = case
        self._activities = activities
        start = Segment(ROOT, 0, PAYLOADS.to_payloads([case.run_input]))
        self.runs: dict[str, Run] = {ROOT: Run([start])}
        self.now = BEGIN
        self.unsent = list(range(len(case.sent)))
        self.losses, self.pairs, self.repeats = case.losses, case.pairs, case.repeats
        self.answers: dict[str, str] = {}
        """By the number of what a client sent: `accepted`, `rejected`, `completed`, `failed`."""
        self.update_ids: dict[int, str] = {}
        """By number: the id of the newest update. A person's decision that came too early is another update the next time."""
        self.first_answers: dict[str, tuple[int, Any]] = {}
        """By update id: the number of the workflow run that has accepted the update, and the answer."""
        self.changed_answers: list[str] = []
        """Updates that were sent again, and got another answer."""
        self._accepted: set[str] = set()
        self.sent_at: dict[int, int] = {}
        """By number of what a client sent: how many activations the run had handled."""
        self.path: list[Event] = []

    @property
    def is_over(self) -> bool:
        """Whether all runs have ended."""
        return all(run.status for run in self.runs.values())

    def close(self) -> None:
        """End all instances."""
        for run in self.runs.values():
            for segment in run.segments:
                segment.close()

    def enabled(self) -> list[Event]:
        """All that can happen now. None: the world is stuck, if it is not over."""
        found: list[Event] = []
        for key, run in self.runs.items():
            if run.status:
                continue
            single = list(self._single(key, run))
            found += [each for each in single if run.is_started or each.kind == "start"]
            if self.pairs:
                found += _pairs(single, is_started=run.is_started)
        if not found and self.runs[ROOT].is_started and not self.runs[ROOT].status:
            found = [Event(ROOT, "sent", n) for n in self._refused_decisions()]
        return found

    def _single(self, key: str, run: Run) -> Iterator[Event]:
        if not run.is_started:
            yield Event(key, "start")
        yield from self._of_activities(key, run)
        if run.timers:
            yield Event(key, "timer", min(run.timers, key=lambda each: run.timers[each]))
        for number, (child, state) in run.children.items():
            if state == "initiated":
                yield Event(key, "child_start", number)
            elif self.runs[child].status:
                yield Event(key, "child", number)
        yield from (Event(key, "signalled", number) for number in run.signalled)
        if run.signals:
            yield Event(key, "signal")
        if run.is_cancel_requested:
            yield Event(key, "cancel")
        if key == ROOT:
            yield from (Event(key, "sent", number) for number in self.unsent)
            if self.repeats:
                yield from (Event(key, "again", number) for number in self._answered_before(run))

    def _of_activities(self, key: str, run: Run) -> Iterator[Event]:
        for number, (request, _) in run.activities.items():
            yield Event(key, "activity", number, "done")
            if number in run.cancelling:
                yield Event(key, "activity", number, "cancelled")
            elif self.losses and request.activity_type == "call_tool" and request.retry_policy.maximum_attempts == 1:
                yield Event(key, "activity", number, "lost")

    def _answered_before(self, run: Run) -> Iterator[int]:
        """Updates that an earlier workflow run has answered. Within one, the server answers what is sent again."""
        for number, update_id in self.update_ids.items():
            if update_id in self.first_answers and self.first_answers[update_id][0] < run.segment.number:
                yield number

    def _refused_decisions(self) -> list[int]:
        """Decisions of people that came too early, for the time when nothing else can happen."""
        sent = enumerate(self.case.sent)
        return [n for n, each in sent if each.is_repeated and self.answers.get(str(n)) in ("rejected", "failed")]

    def happen(self, event: Event) -> None:
        """Deliver an event, and take the workflow's commands."""
        self.path.append(event)
        run = self.runs[event.run]
        jobs = [self._job(event.run, run, event.kind, event.number, event.how)]
        if event.second is not None:
            self.pairs -= 1
            jobs.append(self._job(event.run, run, *event.second))
        self._activate(event.run, run, jobs)

    def _activate(self, key: str, run: Run, jobs: list[WorkflowActivationJob]) -> None:
        while jobs:
            suggests_new = len(run.segment.recorded) >= self.case.continues_after
            commands = run.segment.activate(jobs, self.now, suggests_new=suggests_new)
            jobs = [job for command in commands if (job := self._take(key, run, command)) is not None]
            if run.status or not run.is_started:  # it has ended, or continued as new
                return

    def _job(self, key: str, run: Run, kind: str, number: int, how: str) -> WorkflowActivationJob:
        match kind:
            case "start":
                run.is_started = True
                return run.segment.start_job()
            case "activity":
                request, is_local = run.activities.pop(number)
                return _resolved(number, self._result(key, run, request, how, is_local=is_local), is_local=is_local)
            case "timer":
                self.now = max(self.now, run.timers.pop(number))
                return WorkflowActivationJob(fire_timer=FireTimer(seq=number))
            case "child_start":
                run.children[number] = run.children[number][0], "started"
                started = ResolveChildWorkflowExecutionStart(seq=number)
                started.succeeded.run_id = RUN_ID
                return WorkflowActivationJob(resolve_child_workflow_execution_start=started)
            case "child":
                return self._child_ended(number, self.runs[run.children.pop(number)[0]])
            case "signalled":
                resolved = ResolveSignalExternalWorkflow(seq=number)
                if not run.signalled.pop(number):
                    resolved.failure.message = "no such run"
                return WorkflowActivationJob(resolve_signal_external_workflow=resolved)
            case "signal":
                sent = run.signals.popleft()
                return _signal_job(sent.signal_name, sent.args)
            case "cancel":
                run.is_cancel_requested = False
                return WorkflowActivationJob(cancel_workflow=CancelWorkflow())
        return self._send(run, number, is_again=kind == "again")

    def _send(self, run: Run, number: int, *, is_again: bool) -> WorkflowActivationJob:
        sent: Sent = self.case.sent[number]
        if is_again:
            self.repeats -= 1
            return self._update_job(number)
        if number in self.unsent:
            self.unsent.remove(number)
        self.sent_at[number] = sum(len(each.recorded) for each in run.segments) + 1
        payloads = PAYLOADS.to_payloads([sent.argument])
        if sent.kind == "cancel":
            return WorkflowActivationJob(cancel_workflow=CancelWorkflow())
        if sent.kind == "signal":
            return _signal_job(sent.name, payloads)
        self.answers[str(number)] = "sent"
        self.update_ids[number] = f"{number}-{len(self.path)}"
        return self._update_job(number)

    def _update_job(self, number: int) -> WorkflowActivationJob:
        sent, update_id = self.case.sent[number], self.update_ids[number]
        payloads = PAYLOADS.to_payloads([sent.argument])
        update = DoUpdate(
            id=update_id, protocol_instance_id=update_id, name=sent.name, input=payloads, run_validator=True
        )
        return WorkflowActivationJob(do_update=update)

    def _take_answer(self, run: Run, answer: Any) -> None:
        update_id, how = answer.protocol_instance_id, answer.WhichOneof("response")
        self.answers[update_id.partition("-")[0]] = how
        if how == "accepted":
            self._accepted.add(update_id)
        elif update_id in self._accepted:
            failure = answer.rejected
            content = (
                (failure.message, str(failure.application_failure_info)) if how == "rejected" else answer.completed
            )
            if self.first_answers.setdefault(update_id, (run.segment.number, content))[1] != content:
                self.changed_answers.append(update_id)

    def _result(self, key: str, run: Run, request: Any, how: str, *, is_local: bool) -> ActivityResolution:
        if how == "cancelled":
            return cancelled()
        if how == "lost":
            self.losses -= 1
            lost = ActivityResolution()
            failure = lost.failed.failure
            failure.message = "Activity task failed"
            failure.activity_failure_info.activity_type.name = request.activity_type
            failure.cause.message = "The worker process died."
            failure.cause.application_failure_info.type = "WorkerLost"
            return lost
        return self._activities.result(key, request, run.segment.query, is_local=is_local)

    def _child_ended(self, number: int, child: Run) -> WorkflowActivationJob:
        ended = ResolveChildWorkflowExecution(seq=number)
        if child.status == "completed":
            ended.result.completed.result.CopyFrom(child.result)
        else:
            kind = ended.result.cancelled if child.status == "cancelled" else ended.result.failed
            kind.failure.message = "Child Workflow execution failed"
            kind.failure.child_workflow_execution_failure_info.SetInParent()
            if child.status == "cancelled":
                kind.failure.cause.canceled_failure_info.SetInParent()
            else:
                kind.failure.cause.CopyFrom(child.failure)
        return WorkflowActivationJob(resolve_child_workflow_execution=ended)

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
                run.children[request.seq] = request.workflow_id, "initiated"
                segment = Segment(request.workflow_id, 0, request.input, caller=key, memo=dict(request.memo))
                self.runs[request.workflow_id] = Run([segment], parent=(key, request.seq))
            case "cancel_child_workflow_execution":
                self._cancel_child(run, request.child_workflow_seq)
            case "signal_external_workflow_execution":
                self._signal(run, request)
            case "update_response":
                self._take_answer(run, request)
            case "continue_as_new_workflow_execution":
                self._continue_as_new(run, request)
            case "complete_workflow_execution" | "fail_workflow_execution" | "cancel_workflow_execution":
                self._end(run, kind, request)
            case _ if kind not in _NOTHING_FOLLOWS:
                raise NotImplementedError(kind)
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
        run.segments.append(
            Segment(old.workflow_id, old.number + 1, request.arguments, caller=old.caller, memo=old.memo)
        )
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
        for child, _ in run.children.values():
            self.runs[child].is_cancel_requested = not self.runs[child].status


def _pairs(single: list[Event], *, is_started: bool) -> Iterator[Event]:
    """Two events that the workflow gets in one workflow task, in both orders; a start comes first."""
    for first in single:
        for second in single:
            if (first.kind, first.number) == (second.kind, second.number) or "lost" in (first.how, second.how):
                continue
            if is_started or first.kind == "start":
                yield first._replace(second=(second.kind, second.number, second.how))


def _signal_job(name: str, arguments: Sequence[Payload]) -> WorkflowActivationJob:
    signal = SignalWorkflow(signal_name=name, input=arguments, originating_event_id=1)
    return WorkflowActivationJob(signal_workflow=signal)


def _resolved(number: int, result: ActivityResolution, *, is_local: bool) -> WorkflowActivationJob:
    return WorkflowActivationJob(resolve_activity=ResolveActivity(seq=number, result=result, is_local=is_local))
