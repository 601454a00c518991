"""Record what only another worker or the workflow knows: a failed tool call, and the end of a run.

Both are local activities: they run on the workflow's own worker. If that does not serve the agent, the first one runs
again where it is served.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from temporalio import activity

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.answers.failure_policy import apply_policy, policy_for
from mulligan.activities.services import Services
from mulligan.errors import InvalidToolInputError, ToolCallError, ToolTimeoutError, from_json
from mulligan.wire.run_end import FINISH_RUN, FinishRun
from mulligan.wire.tool_call import RECORD_FAILED_CALL, FailedCall, ToolOutcome


@dataclass(frozen=True)
class RecordRunActivities:
    """The activities `record_failed_call` and `finish_run`."""

    services: Services

    @activity.defn(name=RECORD_FAILED_CALL)
    async def record_failed_call(self, failed: FailedCall) -> ToolOutcome:
        """Write the span of a call whose own worker did not write it, and apply the policy to its failure.

        Raises:
            ApplicationError: this worker does not serve the agent.
        """
        services, start = self.services, failed.started
        agent = await served_agent(services, failed.where)
        tool = services.tools.find(agent, failed.call.name)
        error, server = _error(failed), tool.mcp_server if tool else None
        new_span = partial(services.telemetry.call_span, failed, start=start, mcp_server=server)
        unwritten = range(failed.attempts if failed.written is None else failed.written + 1, failed.attempts)
        for number in unwritten:  # the last attempt was lost as well, before it could write them
            new_span(attempt=number, decision=None).lose()
        span = new_span(attempt=failed.attempts or 1)
        policy = policy_for(error, agent=agent, tool=tool, on_invalid_tool_input=failed.on_invalid_tool_input)
        failure = await apply_policy(error, policy, services.runtime)
        failure.end_span(span)
        services.cache_result(failed.where, failed.call, failure.text, failure.error)
        return ToolOutcome(text=failure.text, error=failure.error, failure=failure.failure, attempts=failed.attempts)

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
