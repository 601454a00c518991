"""What people decide on a call: put on the trace, and what the model is told where the call does not run.

`record_decision` is a local activity, as what else is recorded; `check_edit` runs users' code (validators, the guard).
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError
from temporalio import activity

from mulligan.activities.answers.consult import GUARD_LIMIT, ask_guard
from mulligan.activities.answers.failure_policy import nearest, settle
from mulligan.activities.answers.prepare_call import valid
from mulligan.activities.services import Services
from mulligan.activities.tool_running.render_result import cut
from mulligan.activities.tool_running.tool_context import tool_context
from mulligan.errors import ToolExecutionError
from mulligan.observe.spans import ToolCallAttempt
from mulligan.tool import MAX_RESULT_CHARS
from mulligan.values import Decision, ToolCall
from mulligan.wire.updates import CHECK_EDIT, RECORD_DECISION, CheckedEdit, CheckEdit, RecordDecision, RecordedDecision


@dataclass(frozen=True)
class RecordDecisionActivities:
    """The activities, with what the worker gives them."""

    services: Services

    @activity.defn(name=RECORD_DECISION)
    async def record_decision(self, order: RecordDecision) -> RecordedDecision:
        """The span of a decision; and where the call does not run, the call's own, with what the model is told."""
        self.services.telemetry.record_decision(order.where, order.call, step=order.step, decision=order.decision)
        recorded = RecordedDecision(
            trace=order.where.trace,
            call_id=order.call.id,
            name=order.call.name,
            step=order.step,
            started=order.started,
            decision=order.decision,
            attempts=0,
        )
        if not order.run:
            await self._settle(order, recorded)
            self.services.cache_result(order.where, order.call, recorded.text, recorded.error)
        return recorded

    async def _settle(self, order: RecordDecision, recorded: RecordedDecision) -> None:
        agent = self.services.registry.agents.get(order.where.agent)
        tool = self.services.tools.find(order.where.agent, order.call.name) if agent else None
        attempt = ToolCallAttempt(
            call=order.call,
            step=order.step,
            attempt=1,
            repaired_by=order.repaired_by,
            mcp_server=tool.mcp_server if tool else None,
            decision=order.decision,
        )
        span = self.services.telemetry.tool_call(order.where, attempt, arguments=order.arguments, start=order.started)
        if order.answer is not None:
            recorded.text = cut(order.answer, tool.max_result_chars if tool else MAX_RESULT_CHARS)
            span.succeed(recorded.text)
            return
        error = ToolExecutionError(
            not_run(order.call, order.decision), kind="denied", tool_name=order.call.name, call_id=order.call.id
        )
        # Who stops a run wants it to end as stopped, whatever the policy says of a call that is denied.
        policies = [tool.handle_errors if tool else None, agent.handle_errors if agent else None]
        is_asked = order.decision.decision != "stopped"
        told = await settle(error, nearest(error, *policies) if is_asked else True, self.services.runtime)
        told.close(span)
        recorded.text, recorded.error, recorded.failure = told.text, told.error, told.failure

    @activity.defn(name=CHECK_EDIT)
    async def check_edit(self, order: CheckEdit) -> CheckedEdit:
        """The edited arguments as the tool takes them; refused where it would not, or where the guard says no."""
        agent = self.services.registry.agents.get(order.where.agent)
        pinned = await self.services.definitions.find(order.definition, order.where)
        tool = self.services.tools.find(order.where.agent, order.call.name, pinned=pinned) if agent else None
        if agent is None or tool is None:
            return CheckedEdit(
                refused=f"The worker does not know the tool `{order.call.name}`, so it cannot look at them."
            )
        arguments = valid(tool.arguments, order.arguments)
        if isinstance(arguments, Exception):
            return CheckedEdit(refused=f"`{tool.name}` does not take these arguments: {_faults(arguments)}.")
        resources = self.services.resources.of_agent(agent.name)
        context = tool_context(order.where, order.call, step=order.step, metadata=order.metadata, resources=resources)
        reason = await ask_guard(agent, self.services.runtime, order.call, arguments, context, GUARD_LIMIT)
        return (
            CheckedEdit(arguments=arguments)
            if reason is None
            else CheckedEdit(refused=f"The agent's guard refuses: {reason}")
        )


def _faults(error: Exception) -> str:
    """In the words of whoever wrote the types: a person reads them, who wrote the arguments."""
    if not isinstance(error, ValidationError):
        return str(error) or type(error).__name__
    faults = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}" for fault in faults)


def not_run(call: ToolCall, decision: Decision) -> str:
    """What the model is told of a call that a person did not let pass, or that nobody said anything to."""
    reason = f": {decision.reason}" if decision.reason else "."
    if decision.decision == "stopped":
        return f"`{call.name}` was not run: the run was stopped first{reason}"
    if decision.decision == "timeout":
        nobody = "nobody answered" if decision.kind == "question" else "nobody approved of it"
        return f"`{call.name}` was not run: {nobody} in time."
    return f"`{call.name}` was not run: {decision.by or 'a person'} denied it{reason}"
