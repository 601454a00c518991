"""The tool calls of one step: run side by side, each with one result, added in the order of the calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from pydantic import BaseModel, JsonValue
from temporalio import workflow
from temporalio.exceptions import FailureError

from mulligan.errors import ToolCallError, from_json
from mulligan.schema.optional_field import optional_field
from mulligan.values import AssistantMessage, Decision, ToolCall, ToolMessage
from mulligan.wire.model_call import ModelAnswer, PreparedCall
from mulligan.wire.questions import Replies
from mulligan.wire.run_context import RunContext
from mulligan.wire.shorten import shorten
from mulligan.wire.tool_call import CallTool, ToolOutcome, digest_of_call, tool_message
from mulligan.wire.updates import RecordDecision
from mulligan.workflows import dispatch, limits
from mulligan.workflows.agent_route import AgentRoute
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.records import CallRecord, StepRecord
from mulligan.workflows.deferred.deferred_run import DeferredRun
from mulligan.workflows.once.once_calls import OnceCalls
from mulligan.workflows.once.once_gate import OnceGate
from mulligan.workflows.people.inbox import Inbox
from mulligan.workflows.people.pending_decisions import PendingDecision
from mulligan.workflows.server_questions import AskedQuestions, ServerQuestions
from mulligan.workflows.sub_agents import SubAgents
from mulligan.workflows.turn import Turn
from mulligan.workflows.waiting_for import RunningCall

__all__ = ["OpenStep", "StepCalls"]


class OpenStep(BaseModel):
    """A step from the model's answer to the results of all of its calls. Continue-as-new carries it.

    `runs_per_call`: how many runs each call of a sub-agent may use. `asked`: what calls that have begun ask people, by call
    id. `is_carried`: whether the step began in an earlier workflow run.
    """

    answer: ModelAnswer
    runs_per_call: int = optional_field(1)
    asked: dict[str, AskedQuestions] = optional_field({})
    is_carried: bool = optional_field(False)


@dataclass(frozen=True)
class _StepCall:
    """One call of the step. `index`: its place among the step's calls."""

    index: int
    call: ToolCall
    prepared: PreparedCall
    record: CallRecord


@dataclass(frozen=True, kw_only=True)
class StepCalls:
    """Runs the calls of a turn's newest step, `step`.

    `running`: the calls that are running, for `progress`. `continue_while`: continues as new in the middle of the step
    while its argument returns True; None where that is not possible.
    """

    turn: Turn
    context: RunContext
    conversation: Conversation
    inbox: Inbox
    route: AgentRoute
    sub_agents: SubAgents
    running: list[RunningCall]
    step: OpenStep
    once_calls: OnceCalls
    continue_while: Callable[[Callable[[], bool]], Awaitable[None]] | None = None

    @cached_property
    def once(self) -> OnceGate:
        """Which of the calls are excluded, because equal ones have succeeded."""
        return OnceGate(
            calls=self.once_calls,
            turn=self.turn,
            context=self.context,
            conversation=self.conversation,
            inbox=self.inbox,
            route=self.route,
            answer=self.step.answer,
            is_carried=self.step.is_carried,
        )

    async def run(self, record: StepRecord) -> None:
        """Run the valid calls, and add a result for each call to the conversation.

        Raises:
            MulliganError: the policy for a failure (`handle_errors`) is to fail the run.
        """
        answer, result = self.step.answer, self.turn.result
        for prepared in answer.prepared:
            if prepared.failure is not None:
                raise from_json(prepared.failure)
        if self.step.is_carried:
            self.sub_agents.runs_per_call = self.step.runs_per_call
        else:
            result.tool_calls += len(answer.prepared)
            self.sub_agents.begin_step(self.turn, self._count_calls_of_sub_agents(answer))
            self.step.runs_per_call = self.sub_agents.runs_per_call
        parts = zip(answer.message.tool_calls, answer.prepared, record.calls, strict=True)
        calls = [_StepCall(index, *part) for index, part in enumerate(parts)]
        settled = dict(self.conversation.early_results)
        continuing = asyncio.create_task(self._continue_as_new()) if self._may_wait(calls) else None
        try:
            settled |= await self._run_side_by_side([each for each in calls if each.call.id not in settled])
        finally:
            if continuing is not None:
                continuing.cancel()
        messages = [settled[call.id] for call in answer.message.tool_calls]
        # A call that did not run because the run was stopped is not a mistake that the model recovers from.
        failed = [
            call
            for call, message, made in zip(answer.message.tool_calls, messages, record.calls, strict=True)
            if message.error is not None
            and not (made.decision and made.decision.decision == "stopped")
            and call.id not in self.inbox.deferred.stopped
        ]
        result.recovered_failures += len(failed)
        self.turn.count_repeats(failed)
        result.repairs += sum(len(call.repairs) for call in record.calls)
        self.conversation.end_step(messages)

    def _may_wait(self, calls: Sequence[_StepCall]) -> bool:
        """Whether a call may wait for a person, or a result from elsewhere, and the run may continue as new meanwhile."""
        tools = self.turn.facts.tools
        return self.continue_while is not None and any(
            each.prepared.waits
            or (each.call.name in tools and (tools[each.call.name].asks or tools[each.call.name].deferred))
            for each in calls
        )

    async def _continue_as_new(self) -> None:
        assert self.continue_while is not None
        await self.continue_while(self._only_waits)

    def _only_waits(self) -> bool:
        """Whether each call of the step has its result, or waits for what has not come."""
        waiting, deferred = self.inbox.decisions.waiting, self.inbox.deferred
        return (
            bool(waiting or deferred.waiting)
            and not self.inbox.ask_for
            and all(pending.decision is None for pending in waiting.values())
            and len(deferred.waiting) == len(deferred.open)
            and len(waiting) + len(deferred.waiting) + self.once.waiting + len(self.conversation.early_results)
            == len(self.step.answer.message.tool_calls)
            and workflow.all_handlers_finished()
        )

    async def _run_side_by_side(self, calls: Sequence[_StepCall]) -> dict[str, ToolMessage]:
        """The result of each call, by its id."""
        batch_size = max(1, limits.max_scheduled_at_once(len(calls), self.turn.input.metadata))
        # Calls that wait for a person or for an equal call start at once, outside of the batches, and delay no others.
        apart = [each for each in calls if each.prepared.waits or self.once.repeats(each.index)]
        tasks = {each.call.id: asyncio.create_task(self._run_one(each)) for each in apart}
        waiting = [*tasks.values()]
        others = [each for each in calls if each.call.id not in tasks]
        try:
            for start in range(0, len(others), batch_size):
                batch = {
                    each.call.id: asyncio.create_task(self._run_one(each))
                    for each in others[start : start + batch_size]
                }
                tasks |= batch
                waiting += [batch[each.call.id] for each in others[start:] if self._is_deferred_in(batch, each)]
                await _all_of_batch([task for task in batch.values() if task not in waiting], waiting)
                await self._until_deferred(batch)
            messages = await asyncio.gather(*(tasks[each.call.id] for each in calls))
            return {message.call_id: message for message in messages}
        except (FailureError, asyncio.CancelledError):
            for task in tasks.values():
                task.cancel()
            await self.sub_agents.wait_until_ended()
            # An activity learns of the cancellation with its next heartbeat. The run waits until each has closed its span.
            await asyncio.gather(*tasks.values(), return_exceptions=True)
            raise

    def _is_deferred_in(self, batch: Mapping[str, asyncio.Task[ToolMessage]], step_call: _StepCall) -> bool:
        return step_call.call.id in batch and self._is_deferred(step_call)

    async def _until_deferred(self, batch: Mapping[str, asyncio.Task[ToolMessage]]) -> None:
        """Wait until the bodies of the batch's deferred calls have returned: the next batch does not wait for more."""
        bodies = {call_id: task for call_id, task in batch.items() if not task.done()}
        if bodies:
            waiting = self.inbox.deferred.open
            await workflow.wait_condition(
                lambda: all(
                    task.done() or (call_id in waiting and waiting[call_id].since is not None)
                    for call_id, task in bodies.items()
                )
            )

    def _is_deferred(self, step_call: _StepCall) -> bool:
        facts = self.turn.facts.tools.get(step_call.call.name)
        return facts is not None and facts.deferred and step_call.prepared.text is None

    async def _run_one(self, step_call: _StepCall) -> ToolMessage:
        call = step_call.call
        outcome = await self._outcome(step_call)
        self.once.settled(step_call.index, outcome)
        if outcome.failure is not None:
            error = from_json(outcome.failure)
            if isinstance(error, ToolCallError) and not error.raw_arguments:
                # The raw text is not in the input of the tool's activity, so its error has none.
                error.raw_arguments = step_call.record.written(call)
            raise error
        step_call.record.attempts = outcome.attempts
        message = tool_message(call, outcome.text, outcome.error, outcome.content)
        self.conversation.record_early_result(message)
        self.conversation.event_log.tool_call_settled(step_call.index)
        return message

    async def _outcome(self, step_call: _StepCall) -> ToolOutcome:
        prepared = step_call.prepared
        if prepared.text is not None:
            return ToolOutcome(text=prepared.text, error=prepared.error, attempts=0)
        if self.inbox.deferred.carried(step_call.call.id) is not None:
            return await self._run_deferred(step_call)
        questions, asked = self._questions(step_call), self.step.asked.get(step_call.call.id)
        if asked is None:
            refused = await self._refusal(step_call)
            if refused is not None:
                return refused
            self.conversation.event_log.tool_call_started(step_call.index)
            if self._is_deferred(step_call):
                return await self._run_deferred(step_call)
            outcome = await self._run_noted(step_call, questions)
            asked = AskedQuestions(questions=outcome.asks) if outcome.asks else None
        while asked is not None:
            replies = await questions.ask_all(asked)
            if isinstance(replies, ToolOutcome):
                return replies
            outcome = await self._run_noted(step_call, questions, replies)
            asked = AskedQuestions(questions=outcome.asks, rounds=replies.round) if outcome.asks else None
        return outcome

    async def _refusal(self, step_call: _StepCall) -> ToolOutcome | None:
        """The result of a valid call that does not run. None if it may run, with the arguments that are in its record."""
        decision = step_call.record.decision
        if decision is None or decision.decision != "approve":
            is_asked = self.inbox.decisions.carried(step_call.call.id) is not None
            excluded = None if is_asked else await self.once.before_call(step_call.index)
            if excluded is not None:
                return excluded
            # After a request to stop nothing starts: the decision is `stopped` at once.
            if step_call.prepared.waits is None and self.inbox.stop is None:
                return None
            refused = await self._wait_for_decision(step_call)
            if refused is not None:
                return refused
        # A person has approved the call, perhaps before the run continued as new. The arguments may be edited, and an equal
        # call may have run meanwhile.
        return await self.once.before_call(step_call.index, is_approved=True)

    async def _run_deferred(self, step_call: _StepCall) -> ToolOutcome:
        """Run the body of a deferred call, unless an earlier workflow run has, and wait for its result."""
        run = DeferredRun(
            request=self._request(step_call, None),
            facts=self.turn.facts.tools[step_call.call.name],
            record=step_call.record,
            index=step_call.index,
            calls_in_step=len(self.conversation.steps[-1].calls),
            inbox=self.inbox,
            route=self.route,
            log=self.conversation.event_log,
        )
        return await run.run(lambda: self._run_noted(step_call, self._questions(step_call)))

    async def _run_noted(
        self, step_call: _StepCall, questions: ServerQuestions, replies: Replies | None = None
    ) -> ToolOutcome:
        """Run a call, or continue it with `replies`. Until it ends it is among `running`, and may ask people."""
        facts = self.turn.facts.tools.get(step_call.call.name)
        may_ask = facts is not None and facts.asks
        running = RunningCall(call=step_call.call, record=step_call.record)
        self.running.append(running)
        if may_ask:
            questions.begin_activity()
        try:
            return await self._execute(step_call, replies)
        finally:
            if running in self.running:
                self.running.remove(running)
            if may_ask:
                await questions.end_activity()

    def _questions(self, step_call: _StepCall) -> ServerQuestions:
        facts = self.turn.facts.tools.get(step_call.call.name)
        return ServerQuestions(
            call=step_call.call.model_copy(update={"arguments": ""}),
            index=step_call.index,
            step=self.turn.result.steps,
            record=step_call.record,
            context=self.context,
            inbox=self.inbox,
            log=self.conversation.event_log,
            running=self.running,
            timeout=facts.approval_timeout if facts else None,
            reminder=facts.approval_reminder if facts else None,
            open_questions=self.step.asked,
        )

    async def _wait_for_decision(self, step_call: _StepCall) -> ToolOutcome | None:
        """Wait for a person's decision. Returns None if the call may run, with the arguments that are then in its record."""
        call, prepared, record = step_call.call, step_call.prepared, step_call.record
        facts = self.turn.facts
        pending = self.inbox.decisions.carried(call.id)
        if pending is None:
            pending = PendingDecision(
                call=call,
                kind=prepared.waits or "approval",
                arguments=record.arguments,
                text=_decision_text(call, record.arguments, is_question=prepared.waits == "question"),
                step=self.turn.result.steps,
                timeout=facts.tools[call.name].approval_timeout if call.name in facts.tools else None,
                reminder=facts.tools[call.name].approval_reminder if call.name in facts.tools else None,
            )
            self.conversation.event_log.waiting(step_call.index, pending.kind, pending.text)
        remind = partial(self.conversation.event_log.reminder, step_call.index, pending.kind, pending.text)
        decision = record.decision = await self.inbox.decisions.wait_for(pending, self.inbox.stop, remind)
        self.conversation.event_log.decided(step_call.index)
        if pending.edited_arguments is not None:
            self.conversation.edit_call(step_call.index, pending.edited_arguments)
        is_approved = decision.decision == "approve"
        recorded = await dispatch.record_decision(
            RecordDecision(
                where=self.context,
                call=call,
                arguments=record.arguments,
                step=pending.step,
                decision=_without_before(decision),
                answer=pending.answer,
                run=is_approved,
                repaired_by=[repair.by for repair in prepared.repairs],
                started=pending.since,
                with_request=call.name in facts.tools and bool(facts.tools[call.name].once),
            ),
            self.route,
        )
        return None if is_approved else recorded

    async def _execute(self, step_call: _StepCall, replies: Replies | None) -> ToolOutcome:
        """Run a valid call, as an activity or as a sub-agent's run."""
        call, record = step_call.call, step_call.record
        request = self._request(step_call, replies)
        facts = self.turn.facts.tools.get(call.name)
        if facts is not None and facts.agent is not None:
            return await self.sub_agents.run_call(
                request, facts, turn=self.turn, record=record, sharing=self._calls_that_share_budget()
            )
        return await dispatch.call_tool(request, facts, self.route, len(self.conversation.steps[-1].calls))

    def _request(self, step_call: _StepCall, replies: Replies | None) -> CallTool:
        record = step_call.record
        return CallTool(
            where=self.context,
            call=step_call.call.model_copy(update={"arguments": ""}),
            arguments=record.arguments,
            repaired_by=[repair.by for repair in step_call.prepared.repairs],
            step=self.turn.result.steps,
            metadata=self.turn.input.metadata,
            decision=_without_before(record.decision) if record.decision else None,
            replies=replies,
            digest=digest_of_call(step_call.call),
            first_key=self.once.started(step_call.index),
        )

    def _count_calls_of_sub_agents(self, answer: ModelAnswer) -> int:
        """How many of the step's calls start a run."""
        tools, parts = self.turn.facts.tools, zip(answer.message.tool_calls, answer.prepared, strict=True)
        return sum(
            prepared.text is None and call.name in tools and tools[call.name].agent is not None
            for call, prepared in parts
        )

    def _calls_that_share_budget(self) -> int:
        """How many of the step's calls are sub-agents' that share the rest of the budget."""
        tools, answer = self.turn.facts.tools, self.conversation.messages[self.conversation.steps[-1].at]
        calls = answer.tool_calls if isinstance(answer, AssistantMessage) else []
        return sum(tools[call.name].share_budget for call in calls if call.name in tools)


async def _all_of_batch(
    batch: Iterable[asyncio.Task[ToolMessage]], waiting: Sequence[asyncio.Task[ToolMessage]]
) -> None:
    """Wait for the calls of a batch. A cancellation also reaches the calls that wait for people at once.

    An activity learns of a cancellation with its next heartbeat, and may take long to end: meanwhile a person could approve
    a call, which would then run although the run is cancelled.
    """
    calls = asyncio.gather(*batch)
    try:
        await (asyncio.shield(calls) if waiting else calls)
    except asyncio.CancelledError:
        if waiting:
            calls.cancel()
            for task in waiting:
                task.cancel()
            await calls
        raise


def _without_before(decision: Decision) -> Decision:
    """The decision without the model's own arguments: they are in history already."""
    return decision.model_copy(update={"before": None})


def _decision_text(call: ToolCall, arguments: JsonValue, *, is_question: bool) -> str:
    """The line that tells a person what to decide on."""
    if is_question and isinstance(arguments, dict) and isinstance(question := arguments.get("question"), str):
        return question
    arguments_json = json.dumps(arguments, ensure_ascii=False)
    return f"{call.name} {shorten(arguments_json, limits.DECISION_TEXT_CHARS)}"
