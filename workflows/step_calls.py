"""The calls of one step: run side by side, and each answered by one result, in the order of the calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue
from temporalio import workflow
from temporalio.exceptions import FailureError

from mulligan.errors import ToolCallError, from_json
from mulligan.values import AssistantMessage, ToolCall, ToolMessage
from mulligan.wire.model_call import ModelAnswer, PreparedCall
from mulligan.wire.run_context import RunContext
from mulligan.wire.shorten import shortened
from mulligan.wire.tool_call import CallTool, ToolOutcome, tool_message
from mulligan.wire.updates import RecordDecision
from mulligan.workflows import dispatch, limits
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.records import CallRecord, StepRecord
from mulligan.workflows.people.inbox import Inbox, Wait
from mulligan.workflows.sub_agents import SubAgents
from mulligan.workflows.turn import Turn

ASKED_CHARS = 2_000
"""Of the line that tells a person what they are asked."""
_Call = tuple[ToolCall, PreparedCall, CallRecord]


@dataclass(frozen=True)
class StepCalls:
    """What it takes to settle the calls of a turn's newest step. `running`: the names of those that run just now."""

    turn: Turn
    where: RunContext
    conversation: Conversation
    inbox: Inbox
    running: list[str]
    sub_agents: SubAgents

    async def settle(self, answer: ModelAnswer, record: StepRecord) -> None:
        """Run the valid calls; add every call's result to the conversation.

        Raises:
            MulliganError: a policy says that a failure is not to be recovered from.
        """
        for prepared in answer.prepared:
            if prepared.failure is not None:
                raise from_json(prepared.failure)
        result = self.turn.result
        result.tool_calls += len(answer.prepared)
        calls = list(zip(answer.message.tool_calls, answer.prepared, record.calls, strict=True))
        told = await self._side_by_side(calls)
        result.recovered_failures += sum(each.error is not None for each in told)
        result.repairs += sum(len(kept.repairs) for kept in record.calls)
        self.conversation.end_step(told)

    async def _side_by_side(self, calls: Sequence[_Call]) -> list[ToolMessage]:
        at_once = limits.scheduled_at_once(len(calls), self.turn.input.metadata)
        # Those that wait for people hold up none of the others.
        tasks = {call[0].id: asyncio.create_task(self._settle(*call)) for call in calls if call[1].waits}
        others = [call for call in calls if not call[1].waits]
        try:
            for first in range(0, len(others), max(1, at_once)):
                batch = {
                    call[0].id: asyncio.create_task(self._settle(*call)) for call in others[first : first + at_once]
                }
                tasks |= batch
                await asyncio.gather(*batch.values())
            return list(await asyncio.gather(*(tasks[call.id] for call, _, _ in calls)))
        except (FailureError, asyncio.CancelledError):
            for task in tasks.values():
                task.cancel()
            await self.sub_agents.ended()
            if len(tasks) > 1 and workflow.patched("all_calls_end"):
                # Each hears of it at its next beat: the run is not over before the last one has closed its span.
                await asyncio.gather(*tasks.values(), return_exceptions=True)
            raise

    async def _settle(self, call: ToolCall, prepared: PreparedCall, kept: CallRecord) -> ToolMessage:
        outcome = await self._outcome(call, prepared, kept)
        if outcome.failure is not None:
            error = from_json(outcome.failure)
            if isinstance(error, ToolCallError) and not error.raw_arguments:
                error.raw_arguments = call.arguments  # they do not travel to the tool's activity
            raise error
        kept.attempts = outcome.attempts
        told = tool_message(call, outcome.text, outcome.error)
        self.conversation.settle(told)
        self.conversation.log.tool_call_settled(self._place(kept))
        return told

    def _place(self, kept: CallRecord) -> int:
        return next(place for place, each in enumerate(self.conversation.steps[-1].calls) if each is kept)

    async def _outcome(self, call: ToolCall, prepared: PreparedCall, kept: CallRecord) -> ToolOutcome:
        if prepared.text is not None:
            return ToolOutcome(text=prepared.text, error=prepared.error, attempts=0)
        if prepared.waits is not None or self.inbox.stop is not None:
            settled = await self._ask(call, prepared, kept)
            if settled is not None:
                return settled
        self.conversation.log.tool_call_started(self._place(kept))
        self.running.append(call.name)
        try:
            return await self._run(call, prepared, kept)
        finally:
            self.running.remove(call.name)

    async def _ask(self, call: ToolCall, prepared: PreparedCall, kept: CallRecord) -> ToolOutcome | None:
        """Wait for a person's word. None: the call may run, with the arguments that they have let stand."""
        facts = self.turn.facts
        wait = Wait(
            call=call,
            kind=prepared.waits or "approval",
            arguments=kept.arguments,
            text=_asked(call, kept.arguments, is_question=prepared.waits == "question"),
            step=self.turn.result.steps,
            parameters=next((tool.parameters for tool in facts.definition.tools if tool.name == call.name), {}),
            timeout=facts.tools[call.name].approval_timeout if call.name in facts.tools else None,
        )
        self.conversation.log.waiting(self._place(kept), wait.kind, wait.text)
        decision = kept.decision = await self.inbox.ask(wait)
        self.conversation.log.decided(self._place(kept))
        if wait.edited is not None:
            kept.arguments = wait.edited
        recorded = await dispatch.record_decision(
            RecordDecision(
                where=self.where,
                call=call,
                arguments=kept.arguments,
                step=wait.step,
                decision=decision.model_copy(update={"before": None}),
                answer=wait.answer,
                run=decision.decision == "approve",
                repaired_by=[repair.by for repair in prepared.repairs],
                started=wait.since,
            )
        )
        return None if decision.decision == "approve" else recorded

    async def _run(self, call: ToolCall, prepared: PreparedCall, kept: CallRecord) -> ToolOutcome:
        """What comes of a valid call."""
        order = CallTool(
            where=self.where,
            call=call.model_copy(update={"arguments": ""}),
            arguments=kept.arguments,
            repaired_by=[repair.by for repair in prepared.repairs],
            step=self.turn.result.steps,
            metadata=self.turn.input.metadata,
            decision=kept.decision.model_copy(update={"before": None}) if kept.decision else None,
        )
        facts = self.turn.facts.tools.get(call.name)
        if facts is not None and facts.agent is not None:
            return await self.sub_agents.call(order, facts, self.turn, kept, self._sharing())
        return await dispatch.call_tool(order, facts, len(self.conversation.steps[-1].calls))

    def _sharing(self) -> int:
        """How many calls of the step are of sub-agents that share what is left of the budget."""
        tools, said = self.turn.facts.tools, self.conversation.messages[self.conversation.steps[-1].at]
        calls = said.tool_calls if isinstance(said, AssistantMessage) else []
        return sum(tools[call.name].share_budget for call in calls if call.name in tools)


def _asked(call: ToolCall, arguments: JsonValue, *, is_question: bool) -> str:
    """What a person reads first."""
    if is_question and isinstance(arguments, dict) and isinstance(question := arguments.get("question"), str):
        return question
    written = json.dumps(arguments, ensure_ascii=False)
    return f"{call.name} {shortened(written, ASKED_CHARS)}"
