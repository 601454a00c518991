"""The calls of an agent that wait for a person: for an approval, or for the answer to a question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from pydantic import JsonValue, TypeAdapter
from temporalio import workflow

from mulligan.values import Decision, ToolCall
from mulligan.wire.questions import Question
from mulligan.wire.ui_summary import ui_summary
from mulligan.wire.updates import Pending, Stop, iso
from mulligan.workflows import limits
from mulligan.workflows.listed_status import set_listed_status
from mulligan.workflows.memo import memo_json
from mulligan.workflows.newest_that_fit import newest_that_fit

__all__ = ["PendingDecision", "PendingDecisions"]

_MEMO = "waiting"
"""The memo by which `mulligan pending` finds the runs with pending decisions among all open runs."""


@dataclass(kw_only=True)
class PendingDecision:
    """A call that waits for a person, until it has a `decision`.

    `arguments` are the model's. `text` tells the person what to decide on. `timeout`: seconds; None: no limit. `reminder`:
    seconds until the first reminder; None: no reminders. `question`: the question of the call's MCP server, if it asks one;
    `content`: the answer to it.
    """

    call: ToolCall
    kind: Literal["approval", "question"]
    arguments: JsonValue
    text: str
    step: int
    timeout: float | None = None
    reminder: float | None = None
    question: Question | None = None
    since: float = field(default_factory=workflow.time)
    """Seconds since the epoch."""
    decision: Decision | None = None
    answer: str | None = None
    edited_arguments: JsonValue = None
    content: dict[str, JsonValue] | None = None
    reminders: int = 0
    """How many reminders have been due."""

    @property
    def next_reminder(self) -> float | None:
        """When the next reminder is due, in seconds since the epoch; None: none follows.

        Each interval is twice the one before it.
        """
        if self.reminder is None or self.reminders >= limits.MOST_REMINDERS:
            return None
        return self.since + self.reminder * (2.0 ** (self.reminders + 1) - 1)

    def take_reminders(self) -> None:
        """Count the reminders that are due. Those that were missed, as no worker ran, count as one event."""
        while (due := self.next_reminder) is not None and due <= workflow.time():
            self.reminders += 1

    @property
    def seconds_left(self) -> float | None:
        """The rest of the timeout; None: no limit. At least a millisecond, as it may pass between two workflow runs."""
        return None if self.timeout is None else max(0.001, self.timeout - (workflow.time() - self.since))

    def resolve(
        self,
        decision: Literal["approve", "deny", "answer", "timeout", "stopped"],
        *,
        by: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Set the decision, and so end the wait. `edited_arguments` and `answer` must be set before."""
        is_edited = self.edited_arguments is not None
        self.decision = Decision(
            kind=self.kind,
            decision=decision,
            since=iso(self.since),
            at=iso(workflow.time()),
            by=by,
            reason=reason,
            edited=is_edited,
            before=self.arguments if is_edited else None,
        )

    def as_pending(self, agent: str, conversation: str) -> Pending:
        """The entry of the query `pending`."""
        return Pending(
            call_id=self.call.id,
            tool=self.call.name,
            arguments=self.arguments,
            kind=self.kind,
            since=iso(self.since),
            text=self.text,
            agent=agent,
            step=self.step,
            until=iso(self.since + self.timeout) if self.timeout is not None else None,
            conversation=conversation,
            answer_schema=self.question.answer_schema if self.question else None,
            url=self.question.url if self.question else None,
            can_deny=self.question is not None,
        )


_WAITING: TypeAdapter[dict[str, PendingDecision]] = TypeAdapter(dict[str, PendingDecision])


class PendingDecisions:
    """The pending decisions of one agent, by call id. `count_all` counts those of the whole workflow."""

    def __init__(self, count_all: Callable[[], int]) -> None:
        self._count_all = count_all
        self.waiting: dict[str, PendingDecision] = {}
        self._resolved: dict[str, Decision] = {}
        self._abandoned: list[str] = []
        """Ids of calls that were still waiting when the run was cancelled."""
        self._carried: set[str] = set()
        """Ids of calls that began to wait in the workflow run before this one, and are not waited for yet in this one."""
        self._continue_as_new: Callable[[], NoReturn] | None = None

    def carried(self, call_id: str) -> PendingDecision | None:
        """The pending decision of a call that began to wait in the workflow run before this one."""
        return self.waiting[call_id] if call_id in self._carried else None

    def continue_as_new(self, leave: Callable[[], NoReturn]) -> None:
        """End each wait by calling `leave`, which raises the SDK's ContinueAsNewError."""
        self._continue_as_new = leave

    async def wait_for(
        self, pending: PendingDecision, stop: Stop | None, on_reminder: Callable[[int], None]
    ) -> Decision:
        """Wait until a person has decided, the timeout has passed, or the run is stopped.

        `stop`: the request to stop, if there is one already. `on_reminder` is called with the number of each reminder. The
        wait uses no resources of a worker.
        """
        self.waiting[pending.call.id] = pending
        is_carried = pending.call.id in self._carried
        self._carried.discard(pending.call.id)
        if stop is not None and pending.decision is None:
            pending.resolve("stopped", by=stop.by, reason=stop.reason)
        elif self._count_all() == 1 and not is_carried:
            workflow.upsert_memo({_MEMO: 1})
            set_listed_status("waiting")
        try:
            while not await self._is_over(pending, on_reminder):
                pass
        finally:
            if self._continue_as_new is None:
                self._end_wait(pending)
        if self._continue_as_new is not None:
            self._continue_as_new()
        if self._count_all() == 0 and memo_json(_MEMO):
            workflow.upsert_memo({_MEMO: 0})
            set_listed_status("running")
        assert pending.decision is not None
        return pending.decision

    async def _is_over(self, pending: PendingDecision, on_reminder: Callable[[int], None]) -> bool:
        """Wait for the decision until the timeout, or until the next reminder, which is then logged."""
        left, due = pending.seconds_left, pending.next_reminder
        until_reminder = None if due is None else max(0.001, due - workflow.time())
        is_for_reminder = until_reminder is not None and (left is None or until_reminder < left)
        what = "reminder of" if is_for_reminder else "time limit of"
        try:
            await workflow.wait_condition(
                lambda: pending.decision is not None or self._continue_as_new is not None,
                timeout=until_reminder if is_for_reminder else left,
                timeout_summary=ui_summary(f"{what} the {pending.kind}: {pending.call.name}"),
            )
        except TimeoutError:
            # A decision in the same moment was already accepted.
            if pending.decision is None and self._continue_as_new is None and is_for_reminder:
                pending.take_reminders()
                on_reminder(pending.reminders)
                return False
            if pending.decision is None and not is_for_reminder:
                pending.resolve("timeout")
        return True

    def _end_wait(self, pending: PendingDecision) -> None:
        del self.waiting[pending.call.id]
        if pending.decision is None:
            self._abandoned.append(pending.call.id)
        else:
            resolved = [*self._resolved.items(), (pending.call.id, pending.decision)]
            self._resolved = dict(resolved[-limits.DECISIONS_KEPT :])

    def resolve_as_stopped(self, stop: Stop) -> None:
        """Resolve all that wait, as the run stops."""
        for pending in self.waiting.values():
            if pending.decision is None:
                pending.resolve("stopped", by=stop.by, reason=stop.reason)

    def decision_on(self, call_id: str) -> Decision | None:
        """The decision on a call that waited; None if it has none yet, or never waited."""
        pending = self.waiting.get(call_id)
        return pending.decision if pending is not None else self._resolved.get(call_id)

    def undecided(self) -> list[str]:
        """The ids of the calls that nobody has decided on, and that so have not run."""
        waiting = (call_id for call_id, pending in self.waiting.items() if pending.decision is None)
        return [*self._abandoned, *waiting]

    def dump(self) -> dict[str, Any]:
        """What continue-as-new carries, as JSON: the calls that wait, and the newest decisions without their texts."""
        state: dict[str, Any] = {}
        if self.waiting:
            state["waiting"] = _WAITING.dump_python(self.waiting, mode="json")
        without_texts = {"before": None, "reason": None}
        resolved = {
            call_id: decision.model_copy(update=without_texts).model_dump(mode="json")
            for call_id, decision in self._resolved.items()
        }
        if decided := newest_that_fit(resolved, limits.DECISIONS_CARRIED_BYTES):
            state["decided"] = decided
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Continue with what `dump` returned."""
        self.waiting = _WAITING.validate_python(state.get("waiting", {}))
        self._carried = set(self.waiting)
        self._resolved = {
            call_id: Decision.model_validate(decision) for call_id, decision in state.get("decided", {}).items()
        }
