"""Record what only another worker or the workflow knows: a failed tool call, and the end of a run.

Both are local activities: they run on the workflow's own worker. If that does not serve the agent, the first one runs
again where it is served.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from temporalio import activity

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.answers.failure_policy import apply_policy, policy_for
from mulligan.activities.services import Services
from mulligan.errors import InvalidToolInputError, ToolCallError, ToolTimeoutError, from_json
from mulligan.observe.spans import ToolCallAttempt
from mulligan.wire.run_end import FINISH_RUN, FinishRun
from mulligan.wire.tool_call import RECORD_FAILED_CALL, FailedCall, RecordedFailure


@dataclass(frozen=True)
class RecordRunActivities:
    """The activities `record_failed_call` and `finish_run`."""

    services: Services

    @activity.defn(name=RECORD_FAILED_CALL)
    async def record_failed_call(self, failed: FailedCall) -> RecordedFailure:
        """Write the span of a call whose own worker did not write it, and apply the policy to its failure.

        Raises:
            ApplicationError: this worker does not serve the agent.
        """
        services = self.services
        agent = await served_agent(services, failed.where)
        tool = services.tools.find(agent, failed.call.name)
        error = _error(failed)
        attempt = ToolCallAttempt(
            call=failed.call,
            step=failed.step,
            attempt=failed.attempts or 1,
            repaired_by=failed.repaired_by,
            decision=failed.decision,
            mcp_server=tool.mcp_server if tool else None,
        )
        unwritten = range(failed.attempts if failed.written is None else failed.written + 1, failed.attempts)
        for number in unwritten:  # the last attempt was lost as well, before it could write them
            earlier = replace(attempt, attempt=number, decision=None)
            services.telemetry.tool_call(failed.where, earlier, start=failed.started).lose()
        span = services.telemetry.tool_call(failed.where, attempt, start=failed.started)
        policy = policy_for(error, agent=agent, tool=tool, on_invalid_tool_input=failed.on_invalid_tool_input)
        failure = await apply_policy(error, policy, services.runtime)
        failure.end_span(span)
        services.cache_result(failed.where, failed.call, failure.text, failure.error)
        return RecordedFailure(
            text=failure.text,
            error=failure.error,
            failure=failure.failure,
            attempts=failed.attempts,
            trace=failed.where.trace,
            call_id=failed.call.id,
            name=failed.call.name,
            step=failed.step,
            started=failed.started,
            repaired_by=failed.repaired_by,
            decision=failed.decision,
        )

    @activity.defn(name=FINISH_RUN)
    async def finish_run(self, finished: FinishRun) -> None:
        """Write the closing span of a run."""
        self.services.telemetry.finish_run(finished, activity.info().workflow_type or "")


def _error(failed: FailedCall) -> ToolCallError:
    call = failed.call
    if failed.kind == "duplicate_call":
        return InvalidToolInputError(
            failed.message,
            detail=failed.detail,
            kind=failed.kind,
            tool_name=call.name,
            call_id=call.id,
            raw_arguments=call.arguments,
        )
    if failed.failure is None:
        return ToolTimeoutError(failed.message, kind=failed.kind, tool_name=call.name, call_id=call.id)
    error = from_json(failed.failure)
    assert isinstance(error, ToolCallError)
    return error
