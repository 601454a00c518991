"""Record what a person decided on a call, and check the arguments that a person edited.

`record_decision` is a local activity like the other `record_` activities. `check_edit` runs users' code (validators, the
guard), so it is an ordinary activity.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from temporalio import activity

from mulligan.activities.answers.failure_policy import apply_policy, policy_for
from mulligan.activities.answers.prepare_call import valid
from mulligan.activities.answers.user_functions import GUARD_LIMIT, guard_refusal
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
    """The activities `record_decision` and `check_edit`."""

    services: Services

    @activity.defn(name=RECORD_DECISION)
    async def record_decision(self, request: RecordDecision) -> RecordedDecision:
        """Write the span of a decision. If the call does not run, also write the call's span and return its result."""
        self.services.telemetry.record_decision(
            request.where, request.call, step=request.step, decision=request.decision
        )
        recorded = RecordedDecision(
            trace=request.where.trace,
            call_id=request.call.id,
            name=request.call.name,
            step=request.step,
            started=request.started,
            decision=request.decision,
            attempts=0,
        )
        if request.run:
            return recorded
        result = await self._result(request)
        self.services.cache_result(request.where, request.call, result["text"], result["error"])
        return recorded.model_copy(update=result)

    async def _result(self, request: RecordDecision) -> dict[str, Any]:
        """The result of a call that does not run: `text`, `error` and `failure`. Its span is written."""
        services = self.services
        agent = services.registry.agents.get(request.where.agent)
        tool = services.tools.find(request.where.agent, request.call.name) if agent else None
        attempt = ToolCallAttempt(
            call=request.call,
            step=request.step,
            attempt=1,
            repaired_by=request.repaired_by,
            mcp_server=tool.mcp_server if tool else None,
            decision=request.decision,
        )
        telemetry = services.telemetry
        span = telemetry.tool_call(request.where, attempt, arguments=request.arguments, start=request.started)
        if request.answer is not None:
            text = cut(request.answer, tool.max_result_chars if tool else MAX_RESULT_CHARS)
            span.succeed(text)
            return {"text": text, "error": None, "failure": None}
        error = ToolExecutionError(
            not_run(request.call, request.decision),
            kind="denied",
            tool_name=request.call.name,
            call_id=request.call.id,
        )
        # A run that a person stops must end as stopped, so no policy may fail it.
        is_stopped = request.decision.decision == "stopped"
        policy = True if is_stopped else policy_for(error, agent=agent, tool=tool)
        failure = await apply_policy(error, policy, services.runtime)
        if is_stopped:
            # The model never reads it, so it is no recovered failure.
            span.fail_attempt("denied", error.message, type(error).__name__)
        else:
            failure.end_span(span)
        return {"text": failure.text, "error": failure.error, "failure": failure.failure}

    @activity.defn(name=CHECK_EDIT)
    async def check_edit(self, request: CheckEdit) -> CheckedEdit:
        """Validate edited arguments, and call the guard with them; returns the valid arguments, or why they are refused."""
        services = self.services
        agent = services.registry.agents.get(request.where.agent)
        definition = await services.definitions.find(request.definition, request.where)
        tool = services.tools.find(request.where.agent, request.call.name, definition=definition) if agent else None
        if agent is None or tool is None:
            return CheckedEdit(
                refused=f"The worker does not know the tool `{request.call.name}`, so it cannot check them."
            )
        if tool.arguments.blocks:
            arguments = await asyncio.to_thread(valid, tool.arguments, request.arguments)
        else:
            arguments = valid(tool.arguments, request.arguments)
        if isinstance(arguments, Exception):
            return CheckedEdit(refused=f"`{tool.name}` does not take these arguments: {_faults(arguments)}.")
        context = tool_context(
            request.where,
            request.call,
            step=request.step,
            metadata=request.metadata,
            resources=services.resources.of_agent(agent.name),
        )
        refusal = await guard_refusal(agent, services.runtime, request.call, arguments, context, GUARD_LIMIT)
        if refusal is not None:
            return CheckedEdit(refused=f"The agent's guard refuses: {refusal}")
        return CheckedEdit(arguments=arguments)


def _faults(error: Exception) -> str:
    """The faults in the words of the types' validators: the person who wrote the arguments reads them."""
    if not isinstance(error, ValidationError):
        return str(error) or type(error).__name__
    faults = error.errors(include_url=False, include_input=False)
    unknown = [".".join(map(str, fault["loc"])) for fault in faults if fault["type"] == "extra_forbidden"]
    sentences = [
        f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}"
        for fault in faults
        if fault["type"] != "extra_forbidden"
    ]
    if unknown:
        sentences.append("has fields that are not known: " + ", ".join(f'"{name}"' for name in unknown))
    return "; ".join(sentences)


def not_run(call: ToolCall, decision: Decision) -> str:
    """The feedback on a call that a person denied or stopped, or that no person decided on in time."""
    reason = f": {decision.reason}" if decision.reason else "."
    if decision.decision == "stopped":
        return f"`{call.name}` was not run: the run was stopped first{reason}"
    if decision.decision == "timeout":
        nobody = "nobody answered" if decision.kind == "question" else "nobody approved of it"
        return f"`{call.name}` was not run: {nobody} in time."
    return f"`{call.name}` was not run: {decision.by or 'a person'} denied it{reason}"
