"""A run, its sub-agents and all that may happen to them next. One thing happens at a time, or two in one workflow task."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from temporalio.bridge.proto.activity_result import ActivityResolution
from temporalio.bridge.proto.workflow_activation import CancelWorkflow, DoUpdate, WorkflowActivationJob

from mulligan.testing._activities import PAYLOADS, cancelled
from mulligan.testing._engine import Engine, Run, signal_job
from mulligan.workflows.agent_workflow import AgentWorkflow
from tests.schedules.cases import Case, Sent
from tests.schedules.real_activities import RealActivities

ROOT = "run"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
BYTES_OF_ACTIVATION = 1_000


class Event(NamedTuple):
    """Something that can happen to a run. Events have the same names in each schedule."""

    run: str
    kind: str
    number: int = 0
    how: str = ""
    second: tuple[str, int, str] | None = None
    """Kind, number and `how` of an event that is delivered in the same workflow task."""


class World(Engine):
    """The state of one schedule."""

    def __init__(self, case: Case, activities: RealActivities) -> None:
        self.case = case
        self._activities = activities
        super().__init__(AgentWorkflow, ROOT, [case.run_input], BEGIN, self._history)
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
        for kind, number in self.possible(key):
            yield Event(key, kind, number, "done" if kind == "activity" else "")
            if kind != "activity":
                continue
            request, _ = run.activities[number]
            if number in run.cancelling:
                yield Event(key, "activity", number, "cancelled")
            elif self.losses and request.activity_type == "call_tool" and request.retry_policy.maximum_attempts == 1:
                yield Event(key, "activity", number, "lost")
        if key == ROOT:
            yield from (Event(key, "sent", number) for number in self.unsent)
            if self.repeats:
                yield from (Event(key, "again", number) for number in self._answered_before(run))

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
        jobs = [self._job_of(event.run, run, event.kind, event.number, event.how)]
        if event.second is not None:
            self.pairs -= 1
            jobs.append(self._job_of(event.run, run, *event.second))
        answered = len(self.update_answers)
        self.deliver(event.run, jobs)
        for number, answer in self.update_answers[answered:]:
            self._take_answer(number, answer)

    def _history(self, run: Run) -> dict[str, Any]:
        handled = len(run.segment.recorded)
        return {
            "history_length": 4 * (handled + 1),
            "history_size_bytes": BYTES_OF_ACTIVATION * (handled + 1),
            "continue_as_new_suggested": handled >= self.case.continues_after,
        }

    def _job_of(self, key: str, run: Run, kind: str, number: int, how: str) -> WorkflowActivationJob:
        if kind in ("sent", "again"):
            return self._send(run, number, is_again=kind == "again")
        if kind != "activity":
            return self.job(key, kind, number)
        request, is_local = run.activities[number]
        return self.job(key, kind, number, self._result(key, run, request, how, is_local=is_local))

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
            return signal_job(sent.name, payloads)
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

    def _take_answer(self, number: int, answer: Any) -> None:
        update_id, how = answer.protocol_instance_id, answer.WhichOneof("response")
        self.answers[update_id.partition("-")[0]] = how
        if how == "accepted":
            self._accepted.add(update_id)
        elif update_id in self._accepted:
            failure = answer.rejected
            content = (
                (failure.message, str(failure.application_failure_info)) if how == "rejected" else answer.completed
            )
            if self.first_answers.setdefault(update_id, (number, content))[1] != content:
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


def _pairs(single: list[Event], *, is_started: bool) -> Iterator[Event]:
    """Two events that the workflow gets in one workflow task, in both orders; a start comes first."""
    for first in single:
        for second in single:
            if (first.kind, first.number) == (second.kind, second.number) or "lost" in (first.how, second.how):
                continue
            if is_started or first.kind == "start":
                yield first._replace(second=(second.kind, second.number, second.how))
