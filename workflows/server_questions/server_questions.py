"""Asks people what MCP servers want to know in the middle of a call.

A server of the protocol's newest version ends its part of the call with the questions: the call's activity returns them, the
run waits, and another activity continues the call. An older server waits within the call: the running activity asks by an
update of its own workflow, and holds the call open for as long as its worker lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, JsonValue
from temporalio import workflow

from mulligan.errors import UpdateRefusedError
from mulligan.schema.optional_field import optional_field
from mulligan.values import AnsweredQuestion
from mulligan.wire.parse_update import parse_update
from mulligan.wire.questions import ASK_PERSON, TOO_MANY_ASK, AskPerson, Question, QuestionReply, Questions, Replies
from mulligan.wire.tool_call import ToolOutcome, without_arguments
from mulligan.wire.updates import RECORD_DECISION, RecordDecision
from mulligan.workflows import limits
from mulligan.workflows.feature import Feature
from mulligan.workflows.people.person_wait import PersonWait
from mulligan.workflows.shown_wait import RunningCall
from mulligan.workflows.step_call import StepCall

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent
    from mulligan.workflows.turn import Turn
    from mulligan.workflows.workflow_agents import WorkflowAgents

_ACTIONS = {"answer": "accept", "deny": "decline", "timeout": "cancel", "stopped": "cancel"}
"""What a server is told of a person's decision, in the protocol's words."""


class AskedQuestions(BaseModel):
    """What a call's server asks before the call is continued, and the replies so far. Continue-as-new carries it.

    `rounds`: how often the call has been continued before. `answered`: how many questions of the call have been decided.
    """

    questions: Questions
    rounds: int = optional_field(0)
    replies: dict[str, QuestionReply] = optional_field({})
    answered: int = optional_field(0)


@dataclass(kw_only=True)
class _AskingCall:
    """A call that may ask: one question at a time, as people name a question by its call.

    `answered`: how many of its questions have been decided. `is_running`: whether its activity may ask.
    """

    call: StepCall
    answered: int = 0
    is_running: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ServerQuestions(Feature):
    """The questions to people of one agent's calls. Its state: what calls wait for between two activities, by call id."""

    def __init__(self, agent: RunningAgent) -> None:
        super().__init__(agent)
        self._asked: dict[str, AskedQuestions] = {}
        self._asking: dict[str, _AskingCall] = {}

    @classmethod
    def listen(cls, agents: WorkflowAgents) -> None:
        """Set the handler of the update by which a running activity asks."""
        _AskHandler(agents)

    @classmethod
    def is_used(cls, turn: Turn) -> bool:
        """The MCP server of one of its tools may ask."""
        return any(each.may_ask_person for each in turn.facts.tools.values())

    def begin_calls(self, calls: Sequence[StepCall]) -> None:
        """Forget the questions of earlier steps, whose calls a stop has ended."""
        if not any(call.is_carried or call.of is not None for call in calls):
            self._asked = {}

    async def run_call(self, call: StepCall, then: Callable[[StepCall], Awaitable[ToolOutcome]]) -> ToolOutcome:
        """Run the call, and continue it with people's replies for as long as its server asks."""
        if call.facts is None or not call.facts.may_ask_person:
            return await then(call)
        assert call.request is not None
        call_id, asking = call.call.id, _AskingCall(call=call)
        self._asking[call_id] = asking
        try:
            while True:
                if (exchange := self._asked.get(call_id)) is not None:
                    replies = await self._ask_all(asking, exchange)
                    if isinstance(replies, ToolOutcome):
                        return replies
                    call.request.replies = replies
                outcome = await self._run(asking, then)
                if not outcome.questions:
                    return outcome
                rounds = call.request.replies.round if call.request.replies else 0
                self._asked[call_id] = AskedQuestions(questions=outcome.questions, rounds=rounds)
        finally:
            del self._asking[call_id]

    async def _run(self, asking: _AskingCall, then: Callable[[StepCall], Awaitable[ToolOutcome]]) -> ToolOutcome:
        """Run one activity of the call, which may ask while it runs."""
        asking.is_running = True
        try:
            return await then(asking.call)
        finally:
            asking.is_running = False
            # Nobody needs the answer to its open question any more.
            wait = self.agent.waits.find(PersonWait, asking.call.call.id)
            if wait is not None and wait.decision is None:
                wait.resolve("timeout", reason="The call ended before the answer.")
            async with asking.lock:
                pass  # the decision is recorded

    async def _ask_all(self, asking: _AskingCall, exchange: AskedQuestions) -> Replies | ToolOutcome:
        """Ask what a call needs to know to be continued; returns the replies, or the call's result if the run is stopped."""
        asking.answered = max(asking.answered, exchange.answered)
        replied = set(exchange.replies)
        for question in exchange.questions.questions:
            if question.key in replied:
                continue
            exchange.answered = asking.answered
            reply, recorded = await self._ask(asking, question, ends_call=True)
            if recorded.text:
                return recorded
            exchange.replies[question.key] = reply
        del self._asked[asking.call.call.id]
        return Replies(replies=exchange.replies, state=exchange.questions.state, round=exchange.rounds + 1)

    def may_ask(self, call_id: str) -> bool:
        """Whether a running call may ask."""
        return call_id in self._asking and self._asking[call_id].is_running

    async def ask_while_running(self, call_id: str, question: Question) -> QuestionReply:
        """Ask for the activity of a call, which is running. Meanwhile the run waits for the person, not for the tool."""
        asking = self._asking.get(call_id)
        if asking is None:
            return QuestionReply(action="cancel")
        async with asking.lock:
            if not asking.is_running:
                return QuestionReply(action="cancel")
            running = self.agent.waits.find(RunningCall, call_id)
            if running is not None:
                running.is_hidden = True
            try:
                reply, _ = await self._ask(asking, question, ends_call=False)
            finally:
                if running is not None:
                    running.is_hidden = False
            self.agent.waits.kinds_changed()
            return reply

    async def _ask(
        self, asking: _AskingCall, question: Question, *, ends_call: bool
    ) -> tuple[QuestionReply, ToolOutcome]:
        """Wait for a person, and record the decision. `ends_call`: whether a run that is stopped ends the call here."""
        agent, call = self.agent, asking.call
        log = agent.conversation.event_log
        wait = agent.waits.carried(PersonWait, call.call.id)
        if wait is None:
            wait = PersonWait(
                key=call.call.id,
                call=without_arguments(call.call),
                index=call.index,
                reason="question",
                arguments=call.record.arguments,
                text=f"{question.text}\n{question.url}" if question.url else question.text,
                user=agent.turn.input.user,
                step=agent.turn.result.steps,
                timeout=call.timeout,
                reminder=call.reminder,
                question=question,
                is_held=not ends_call,
            )
        decision = await wait.decided(agent.waits, log, agent.inbox.stop)
        log.decided(call.index, decision)
        content: dict[str, JsonValue] | None = wait.content
        call.record.questions.append(AnsweredQuestion(text=question.text, content=content, decision=decision))
        asking.answered += 1
        request = RecordDecision(
            where=agent.context,
            call=wait.call,
            arguments=call.record.arguments,
            step=wait.step,
            decision=decision,
            run=not (decision.decision == "stopped" and ends_call),
            question=asking.answered,
            started=wait.since,
        )
        summary = f"{call.call.name}: {decision.decision}"
        recorded = await agent.activity(RECORD_DECISION, request, ToolOutcome, summary=summary)
        return QuestionReply.model_validate({"action": _ACTIONS[decision.decision], "content": content}), recorded

    def dump(self) -> dict[str, Any] | None:
        """The questions of calls between two activities, as JSON."""
        return {call_id: exchange.model_dump(mode="json") for call_id, exchange in self._asked.items()} or None

    def load(self, state: Any) -> None:
        """Continue with what `dump` returned."""
        self._asked = {call_id: AskedQuestions.model_validate(exchange) for call_id, exchange in state.items()}


class _AskHandler:
    """The handler of the update `ask_person` of one workflow, which only its own activities send."""

    def __init__(self, agents: WorkflowAgents) -> None:
        self._agents = agents
        self._asking = 0
        """How many running activities wait for a person."""
        if workflow.get_update_handler(ASK_PERSON) is None:
            workflow.set_update_handler(ASK_PERSON, self.ask_person, validator=self._check)

    async def ask_person(self, argument: Any = None) -> dict[str, Any]:
        """Ask a person for a running call, and wait for the reply."""
        request = parse_update(AskPerson, argument)
        questions = self._questions(request)
        self._asking += 1
        try:
            with self._agents.handlers.until_end():
                reply = await questions.ask_while_running(request.call_id, request.question) if questions else None
                return (reply or QuestionReply(action="cancel")).model_dump(mode="json")
        finally:
            self._asking -= 1

    def _check(self, argument: Any = None) -> None:
        request = parse_update(AskPerson, argument)
        self._agents.handlers.inbox_of(request.conversation)
        questions = self._questions(request)
        if questions is None or not questions.may_ask(request.call_id):
            raise UpdateRefusedError(f'No call "{request.call_id}" is running that may ask a person.')
        if self._asking >= limits.ASKING_ACTIVITIES:
            raise UpdateRefusedError(TOO_MANY_ASK)

    def _questions(self, request: AskPerson) -> ServerQuestions | None:
        agent = self._agents.find(request.conversation)
        return agent.feature(ServerQuestions) if agent else None
