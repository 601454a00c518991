"""The calls of one step: run side by side, and each answered by one result, in the order of the calls."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from temporalio.exceptions import FailureError

from mulligan.errors import from_json
from mulligan.handoff import CallTool, ModelAnswer, PreparedCall, ToolOutcome, Where, tool_message
from mulligan.values import ToolCall, ToolMessage
from workflows import dispatch, policies
from workflows._turn import Turn
from workflows.conversation import Conversation
from workflows.records import CallRecord, StepRecord
from workflows.sub_agents import SubAgents


@dataclass(frozen=True)
class StepCalls:
    """What it takes to settle the calls of a turn's newest step. `running`: the names of those that run just now."""

    turn: Turn
    where: Where
    conversation: Conversation
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
        at_once = policies.scheduled_at_once(len(calls), self.turn.input.metadata)
        results: list[ToolMessage] = []
        for first in range(0, len(calls), max(1, at_once)):
            tasks = [asyncio.create_task(self._settle(*call)) for call in calls[first : first + at_once]]
            try:
                results += await asyncio.gather(*tasks)
            except (FailureError, asyncio.CancelledError):
                for task in tasks:
                    task.cancel()
                await self.sub_agents.ended()
                raise
        result.recovered_failures += sum(told.error is not None for told in results)
        result.repairs += sum(len(kept.repairs) for kept in record.calls)
        self.conversation.end_step(results)

    async def _settle(self, call: ToolCall, prepared: PreparedCall, kept: CallRecord) -> ToolMessage:
        if prepared.text is not None:
            outcome = ToolOutcome(text=prepared.text, error=prepared.error, attempts=0)
        else:
            self.running.append(call.name)
            try:
                outcome = await self._run(call, prepared, kept)
            finally:
                self.running.remove(call.name)
        if outcome.failure is not None:
            raise from_json(outcome.failure)
        kept.attempts = outcome.attempts
        told = tool_message(call, outcome.text, outcome.error)
        self.conversation.settle(told)
        return told

    async def _run(self, call: ToolCall, prepared: PreparedCall, kept: CallRecord) -> ToolOutcome:
        """What comes of a valid call."""
        order = CallTool(
            where=self.where,
            call=call.model_copy(update={"arguments": ""}),
            arguments=kept.arguments,
            repaired_by=[repair.by for repair in prepared.repairs],
            step=self.turn.result.steps,
            metadata=self.turn.input.metadata,
        )
        facts = self.turn.facts.tools.get(call.name)
        if facts is not None and facts.agent is not None:
            return await self.sub_agents.call(order, facts, self.turn, kept, {})
        return await dispatch.call_tool(order, facts, len(self.conversation.steps[-1].calls))
