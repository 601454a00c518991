"""A call that waits for a person: for an approval, or for the answer to a question."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import JsonValue
from temporalio import workflow

from mulligan.foreign_results import ForeignResult
from mulligan.values import Decision, ToolCall
from mulligan.wire.questions import Question
from mulligan.wire.shorten import shorten
from mulligan.wire.times import iso
from mulligan.wire.ui_summary import ui_summary
from mulligan.wire.updates import EarlierDecision, Pending, Stop
from mulligan.workflows import limits
from mulligan.workflows.conversation.event_log import EventLog
from mulligan.workflows.people.gone_tool import gone_tool_warning
from mulligan.workflows.waits import Wait, WaitKind, Waits

FIRST_AGENT_KEY = "0"
"""The key of a workflow's first agent, which is the only one of an AgentWorkflow."""


@dataclass(kw_only=True, eq=False)
class PersonWait(Wait):
    """A call that waits for a person, until it has a `decision`. Its key is the call's id.

    `index`: the call's place in its step. `arguments` are the model's, `digest` that of their normal form where it is not
    that of their JSON. `text` tells the person what to decide on.
    `timeout`: seconds; None: no limit. `reminder`: seconds until the first reminder; None: no reminders. `question`: of the
    call's MCP server, if it asks one; `content`: the answer to it. `is_held`: whether the call's activity waits meanwhile.
    `runs_elsewhere`: whether another worker than that of the agent would run the call: of the tool, or of a sub-agent.
    `role`: of whoever decides. `edits`: how often people have edited the arguments; `edited_by`: who did so last.
    `user`: for whom the run works. `untrusted`: the untrusted results that the agent had read,
    for calls that are guarded. `earlier`: the newest decisions on calls of the tool.
    """

    name: ClassVar[str] = "person"
    ended_by: ClassVar[WaitKind | None] = "person"

    call: ToolCall
    index: int
    reason: Literal["approval", "question"]
    arguments: JsonValue = None
    digest: str | None = None
    text: str
    step: int
    timeout: float | None = None
    reminder: float | None = None
    question: Question | None = None
    is_held: bool = False
    runs_elsewhere: bool = False
    role: str | None = None
    user: str | None = None
    untrusted: list[ForeignResult] = field(default_factory=list)
    earlier: list[EarlierDecision] = field(default_factory=list)
    decision: Decision | None = None
    answer: str | None = None
    edited_arguments: JsonValue = None
    edited_digest: str | None = None
    edits: int = 0
    edited_by: str | None = None
    content: dict[str, JsonValue] | None = None
    reminders: int = 0
    """How many reminders have been due."""

    @property
    def is_over(self) -> bool:
        """Whether there is a decision."""
        return self.decision is not None

    @property
    def may_leave(self) -> bool:
        """No activity waits for it."""
        return not self.is_held

    @property
    def until(self) -> float | None:
        """When it is decided by itself, in seconds since the epoch; None: never."""
        return None if self.timeout is None else self.since + self.timeout

    @property
    def next_reminder(self) -> float | None:
        """When the next reminder is due, in seconds since the epoch; None: none follows.

        Each interval is twice the one before it.
        """
        if self.reminder is None or self.reminders >= limits.MOST_REMINDERS:
            return None
        return self.since + self.reminder * (2.0 ** (self.reminders + 1) - 1)

    def describe(self, others: Sequence[Wait], key: str) -> tuple[str, str]:
        """The call, and the command that decides on it."""
        is_question = self.reason == "question"
        what = f"an answer to `{self.call.name}`" if is_question else f"approval of `{self.call.name}`"
        run_id = shlex.quote(workflow.info().workflow_id)
        command = f"mulligan {'answer' if is_question else 'approve'} {run_id} {shlex.quote(self.call.id)}"
        if key != FIRST_AGENT_KEY:
            command += f" --conversation {key}"
        if is_question:
            command += ' "…"'
        more = f" (and {len(others)} more: mulligan pending {run_id})" if others else ""
        return f"waiting for {what}", f": {command}{more}"

    @property
    def shown_arguments(self) -> JsonValue:
        """The arguments that are decided on: the model's, or those of the last edit."""
        return self.arguments if self.edited_arguments is None else self.edited_arguments

    def may_approve(self, roles: Sequence[str] | None) -> bool:
        """Whether somebody with these roles may approve the call as it is now. None: they have all."""
        return self.role is None or roles is None or self.role in roles

    def edit(self, arguments: JsonValue, digest: str | None, *, role: str | None, by: str | None) -> None:
        """Replace the arguments. `role`: that whoever approves these must have. `by`: who has edited them."""
        _, *others = self.text.split("\n", 1)
        self.text = "\n".join([decision_text(self.call, arguments, is_question=False), *others])
        self.edited_arguments, self.edited_digest = arguments, digest
        self.role, self.edited_by, self.edits = role, by, self.edits + 1

    def stop(self, stop: Stop) -> None:
        """Nobody is asked any more."""
        if self.decision is None:
            self.resolve("stopped", by=stop.by, reason=stop.reason)

    def resolve(
        self,
        decision: Literal["approve", "deny", "answer", "timeout", "stopped"],
        *,
        by: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Set the decision, and so end the wait. The arguments must be edited, and `answer` set, before."""
        is_edited = self.edited_arguments is not None
        self.decision = Decision(
            kind=self.reason,
            decision=decision,
            since=iso(self.since),
            at=iso(workflow.time()),
            by=by,
            reason=reason,
            edited=is_edited,
            before=self.arguments if is_edited else None,
            edited_by=self.edited_by if self.edited_by != by else None,
            role=self.role,
        )

    async def decided(self, waits: Waits, log: EventLog, stop: Stop | None) -> Decision:
        """Wait until a person has decided, the timeout has passed, or the run is stopped.

        `stop`: the request to stop, if there is one already. People are reminded of it meanwhile.
        """
        is_carried = waits.carried(PersonWait, self.key) is not None
        if not is_carried:
            log.waiting(self.index, self.reason, self.text)
        if stop is not None:
            self.stop(stop)
        if self.decision is None or is_carried:
            with waits.entered(self):
                while self.decision is None:
                    await self._next(waits, log)
        assert self.decision is not None
        waits.remember(self, how_decided(self.decision))
        return self.decision

    async def _next(self, waits: Waits, log: EventLog) -> None:
        """Wait for the decision until the timeout, or until the next reminder, which is then logged."""
        until, due = self.until, self.next_reminder
        is_for_reminder = due is not None and (until is None or due < until)
        what = "reminder of" if is_for_reminder else "time limit of"
        is_decided = await waits.until(
            self,
            lambda: self.decision is not None,
            at=due if is_for_reminder else until,
            summary=ui_summary(f"{what} the {self.reason}: {self.call.name}"),
        )
        if is_decided:
            return
        if not is_for_reminder:
            self.resolve("timeout")
            return
        log.reminder(self.index, self.reason, self.text, self.take_reminders(), is_edited=self.edits > 0)

    def take_reminders(self) -> int:
        """Count the reminders that are due, and return the number of all. Missed ones, as no worker ran, are one event."""
        while (due := self.next_reminder) is not None and due <= workflow.time():
            self.reminders += 1
        return self.reminders

    def as_pending(self, agent: str, conversation: str) -> Pending:
        """The entry of the query `pending`."""
        is_question = self.reason == "question"
        return Pending(
            call_id=self.call.id,
            tool=self.call.name,
            arguments=self.shown_arguments,
            kind=self.reason,
            since=iso(self.since),
            text=self.text,
            agent=agent,
            step=self.step,
            until=iso(self.until) if self.until is not None else None,
            conversation=conversation,
            answer_schema=self.question.answer_schema if self.question else None,
            url=self.question.url if self.question else None,
            role=self.role,
            edits=self.edits,
            edited_by=self.edited_by,
            user=self.user,
            untrusted=self.untrusted,
            earlier=self.earlier,
            can_deny=self.question is not None,
            warning=None if is_question or self.runs_elsewhere else gone_tool_warning(agent, self.call.name),
        )


def decision_text(call: ToolCall, arguments: JsonValue, *, is_question: bool) -> str:
    """The line that tells a person what to decide on."""
    if is_question and isinstance(arguments, dict) and isinstance(question := arguments.get("question"), str):
        return question
    arguments_json = json.dumps(arguments, ensure_ascii=False)
    return f"{call.name} {shorten(arguments_json, limits.DECISION_TEXT_CHARS)}"


def how_decided(decision: Decision) -> str:
    """The end of the sentence that refuses a late reply."""
    verb = {
        "approve": "it was approved",
        "deny": "it was denied",
        "answer": "it was answered",
        "timeout": "it timed out",
        "stopped": "the run was stopped",
    }[decision.decision]
    return f"{verb}{f' by {decision.by}' if decision.by else ''} at {decision.at}"
