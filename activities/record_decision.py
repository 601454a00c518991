"""Record what a person decided on a call. A local activity, like the other `record_` activities."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio import activity

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.answers.failure_policy import apply_policy, policy_for
from mulligan.activities.services import Services
from mulligan.activities.tool_running.render_result import cut
from mulligan.errors import ToolExecutionError
from mulligan.tool import MAX_RESULT_CHARS
from mulligan.values import Decision, ToolCall
from mulligan.wire.tool_call import ToolOutcome
from mulligan.wire.updates import POLICY, RECORD_DECISION, RecordDecision


@dataclass(frozen=True)
class RecordDecisionActivity:
    """The activity `record_decision`."""

    services: Services

    @activity.defn(name=RECORD_DECISION)
    async def record_decision(self, request: RecordDecision) -> ToolOutcome:
        """Write the span of a decision. If the call does not run, also write the call's span and return its result.

        Raises:
            ApplicationError: the agent's policy is needed, and this worker does not serve the agent.
        """
        if not request.run and request.decision.decision != "stopped":
            await served_agent(self.services, request.where)
        telemetry = self.services.telemetry
        if request.question is not None or request.with_request:
            telemetry.record_request(
                request.where,
                request.call,
                step=request.step,
                kind=request.decision.kind,
                at=request.started,
                question=request.question or 0,
            )
        telemetry.record_decision(
            request.where, request.call, step=request.step, decision=request.decision, question=request.question
        )
        if request.run:
            return ToolOutcome()
        result = await self._result(request)
        self.services.cache_result(request.where, request.call, result.text, result.error)
        return result

    async def _result(self, request: RecordDecision) -> ToolOutcome:
        """The result of a call that does not run. Its span is written."""
        services = self.services
        agent = await services.agents.find(request.where)
        tool = services.tools.find(agent, request.call.name) if agent else None
        server, attempts = tool.mcp_server if tool else None, 0 if request.question is None else 1
        span = services.telemetry.call_span(
            request, arguments=request.arguments, start=request.started, mcp_server=server
        )
        if request.answer is not None:
            text = cut(request.answer, tool.max_result_chars if tool else MAX_RESULT_CHARS)
            span.succeed(text)
            return ToolOutcome(text=text, attempts=attempts)
        error = ToolExecutionError(
            not_run(request.call, request.decision, is_begun=request.question is not None),
            kind="denied",
            tool_name=request.call.name,
            call_id=request.call.id,
        )
        # A run that a person stops must end as stopped, so no policy may fail it.
        is_stopped = request.decision.decision == "stopped"
        policy = True if is_stopped else policy_for(error, agent=agent, tool=tool)
        failure = await apply_policy(error, policy, services.runtime)
        if is_stopped:
            # The model never reads it, so it is not a recovered failure.
            span.fail_attempt("denied", error.message, type(error).__name__)
        else:
            failure.end_span(span)
        return ToolOutcome(text=failure.text, error=failure.error, failure=failure.failure, attempts=attempts)


def not_run(call: ToolCall, decision: Decision, *, is_begun: bool = False) -> str:
    """The feedback on a call that a person denied or stopped, or that no person decided on in time.

    `is_begun`: it had begun, and waited for the answer to a question of its MCP server.
    """
    reason = f": {decision.reason}" if decision.reason else "."
    if is_begun:
        return f"`{call.name}` was not finished: the run was stopped before its question was answered{reason}"
    if decision.decision == "stopped":
        return f"`{call.name}` was not run: the run was stopped first{reason}"
    if decision.by == POLICY:
        return f"`{call.name}` was not run{reason}"
    if decision.decision == "timeout":
        nobody = "nobody answered" if decision.kind == "question" else "nobody approved of it"
        return f"`{call.name}` was not run: {nobody} in time."
    return f"`{call.name}` was not run: {decision.by or 'a person'} denied it{reason}"
