"""The questions that MCP servers ask people in the middle of a call.

A server of the protocol's newest version ends its part of the call with the questions: the call's activity returns them, the
run waits, and another activity continues the call. An older server waits within the call: the running activity asks by an
update of its own workflow, and holds the call open for as long as its worker lives.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial

from pydantic import BaseModel, JsonValue

from mulligan.schema.optional_field import optional_field
from mulligan.values import AnsweredQuestion, ToolCall
from mulligan.wire.questions import Question, Questions, Replies, Reply
from mulligan.wire.run_context import RunContext
from mulligan.wire.tool_call import ToolOutcome
from mulligan.wire.updates import RecordDecision
from mulligan.workflows import dispatch
from mulligan.workflows.conversation.event_log import EventLog
from mulligan.workflows.conversation.records import CallRecord
from mulligan.workflows.people.inbox import Inbox
from mulligan.workflows.people.pending_decisions import PendingDecision
from mulligan.workflows.waiting_for import RunningCall

__all__ = ["AskedQuestions", "ServerQuestions"]

_ACTIONS = {"answer": "accept", "deny": "decline", "timeout": "cancel", "stopped": "cancel"}
"""What a server is told of a person's decision, in the protocol's words."""


class AskedQuestions(BaseModel):
    """What a call's server asks before the call is continued, and the replies so far. Continue-as-new carries it.

    `rounds`: how often the call has been continued before. `answered`: how many questions of the call have been decided.
    """

    questions: Questions
    rounds: int = optional_field(0)
    replies: dict[str, Reply] = optional_field({})
    answered: int = optional_field(0)


@dataclass(kw_only=True)
class ServerQuestions:
    """The questions of one call: one at a time, as people name a question by its call.

    `index`: the call's place in its step. `timeout`: seconds that each question waits; None: no limit. `reminder`: seconds
    until people are reminded of a question; None: never. `running`: the
    turn's running calls. `open_questions`: what the step's calls are asked between two activities, by call id.
    """

    call: ToolCall
    index: int
    step: int
    record: CallRecord
    context: RunContext
    inbox: Inbox
    log: EventLog
    running: list[RunningCall]
    timeout: float | None
    reminder: float | None
    open_questions: dict[str, AskedQuestions]
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _answered: int = 0
    _is_over: bool = True

    async def ask_all(self, asked: AskedQuestions) -> Replies | ToolOutcome:
        """Ask what a call needs to know to be continued; returns the replies, or the call's result if the run is stopped."""
        self.open_questions[self.call.id] = asked
        self._answered = max(self._answered, asked.answered)
        replied = set(asked.replies)
        for question in asked.questions.questions:
            if question.key in replied:
                continue
            asked.answered = self._answered
            reply, recorded = await self._ask(question, ends_call=True)
            if recorded.text:
                return recorded
            asked.replies[question.key] = reply
        del self.open_questions[self.call.id]
        return Replies(replies=asked.replies, state=asked.questions.state, round=asked.rounds + 1)

    async def ask_while_running(self, question: Question) -> Reply:
        """Ask for the activity of the call, which is running. Meanwhile the run waits for the person, not for the tool."""
        async with self._lock:
            if self._is_over:
                return Reply(action="cancel")
            waiting = [each for each in self.running if each.call.id == self.call.id]
            for each in waiting:
                self.running.remove(each)
            try:
                reply, _ = await self._ask(question, ends_call=False)
            finally:
                if not self._is_over:
                    self.running.extend(waiting)
            return reply

    def begin_activity(self) -> None:
        """An activity of the call starts: from now on it may ask."""
        self._is_over = False
        self.inbox.ask_for[self.call.id] = self.ask_while_running

    async def end_activity(self) -> None:
        """The call's activity has ended: nobody needs the answer to its open question any more."""
        self._is_over = True
        del self.inbox.ask_for[self.call.id]
        pending = self.inbox.decisions.waiting.get(self.call.id)
        if pending is not None and pending.decision is None:
            pending.resolve("timeout", reason="The call ended before the answer.")
        async with self._lock:
            pass  # the decision is recorded

    async def _ask(self, question: Question, *, ends_call: bool) -> tuple[Reply, ToolOutcome]:
        """Wait for a person, and record what was decided. `ends_call`: whether a run that is stopped ends the call here."""
        pending = self.inbox.decisions.carried(self.call.id)
        if pending is None:
            pending = PendingDecision(
                call=self.call,
                kind="question",
                arguments=self.record.arguments,
                text=_text(question),
                step=self.step,
                timeout=self.timeout,
                reminder=self.reminder,
                question=question,
            )
            self.log.waiting(self.index, pending.kind, pending.text)
        remind = partial(self.log.reminder, self.index, pending.kind, pending.text)
        decision = await self.inbox.decisions.wait_for(pending, self.inbox.stop, remind)
        self.log.decided(self.index, decision)
        content: dict[str, JsonValue] | None = pending.content
        self.record.questions.append(AnsweredQuestion(text=question.text, content=content, decision=decision))
        self._answered += 1
        is_stopped = decision.decision == "stopped"
        recorded = await dispatch.record_decision(
            RecordDecision(
                where=self.context,
                call=self.call,
                arguments=self.record.arguments,
                step=self.step,
                decision=decision,
                run=not (is_stopped and ends_call),
                question=self._answered,
                started=pending.since,
            )
        )
        reply = Reply.model_validate({"action": _ACTIONS[decision.decision], "content": content})
        return reply, recorded


def _text(question: Question) -> str:
    return f"{question.text}\n{question.url}" if question.url else question.text
