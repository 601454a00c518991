"""The calls of an agent that wait for a person: for an approval, or for the answer to a question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue
from temporalio import workflow

from mulligan.values import Decision, ToolCall
from mulligan.wire.questions import Question
from mulligan.wire.ui_summary import ui_summary
from mulligan.wire.updates import Pending, Stop, iso
from mulligan.workflows import limits
from mulligan.workflows.listed_status import set_listed_status
from mulligan.workflows.memo import memo_json

__all__ = ["PendingDecision", "PendingDecisions"]

_MEMO = "waiting"
"""The memo by which `mulligan pending` finds the runs with pending decisions among all open runs."""


@dataclass(kw_only=True)
class PendingDecision:
    """A call that waits for a person, until it has a `decision`.

    `arguments` are the model's. `text` tells the person what to decide on. `timeout`: seconds; None: no limit. `question`:
    the question of the call's MCP server, if it asks one; `content`: the answer to it.
    """

    call: ToolCall
    kind: Literal["approval", "question"]
    arguments: JsonValue
    text: str
    step: int
    timeout: float | None = None
    question: Question | None = None
    since: float = field(default_factory=workflow.time)
    """Seconds since the epoch."""
    decision: Decision | None = None
    answer: str | None = None
    edited_arguments: JsonValue = None
    content: dict[str, JsonValue] | None = None

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


class PendingDecisions:
    """The pending decisions of one agent, by call id. `count_all` counts those of the whole workflow."""

    def __init__(self, count_all: Callable[[], int]) -> None:
        self._count_all = count_all
        self.waiting: dict[str, PendingDecision] = {}
        self._resolved: dict[str, Decision] = {}
        self._abandoned: list[str] = []
        """Ids of calls that were still waiting when the run was cancelled."""

    async def wait_for(self, pending: PendingDecision, stop: Stop | None) -> Decision:
        """Wait until a person has decided, the timeout has passed, or the run is stopped.

        `stop`: the request to stop, if there is one already. The wait uses no resources of a worker.
        """
        self.waiting[pending.call.id] = pending
        if stop is not None:
            pending.resolve("stopped", by=stop.by, reason=stop.reason)
        elif self._count_all() == 1:
            workflow.upsert_memo({_MEMO: 1})
            set_listed_status("waiting")
        try:
            await workflow.wait_condition(
                lambda: pending.decision is not None,
                timeout=pending.timeout,
                timeout_summary=ui_summary(f"time limit of the {pending.kind}: {pending.call.name}"),
            )
        except TimeoutError:
            # A decision in the same moment was already accepted.
            if pending.decision is None:
                pending.resolve("timeout")
        finally:
            del self.waiting[pending.call.id]
            if pending.decision is None:
                self._abandoned.append(pending.call.id)
            else:
                resolved = [*self._resolved.items(), (pending.call.id, pending.decision)]
                self._resolved = dict(resolved[-limits.DECISIONS_KEPT :])
        if self._count_all() == 0 and memo_json(_MEMO):
            workflow.upsert_memo({_MEMO: 0})
            set_listed_status("running")
        assert pending.decision is not None
        return pending.decision

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
