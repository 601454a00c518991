"""Record what only another worker or the workflow knows: a tool call whose worker was lost, and the end of a run.

Both are local activities: they run on the workflow's own worker. If that does not serve the agent, the first one runs
again where it is served.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from temporalio import activity

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.answers.failure_policy import apply_policy, policy_for
from mulligan.activities.services import Services
from mulligan.errors import ToolCallError, ToolTimeoutError, from_json
from mulligan.observe.spans import ToolCallAttempt
from mulligan.wire.run_end import FINISH_RUN, FinishRun
from mulligan.wire.tool_call import RECORD_LOST_CALL, LostCall, ToolOutcome


@dataclass(frozen=True)
class RecordRunActivities:
    """The activities `record_lost_call` and `finish_run`."""

    services: Services

    @activity.defn(name=RECORD_LOST_CALL)
    async def record_lost_call(self, lost: LostCall) -> ToolOutcome:
        """Write the span of a call whose own worker did not write it, and apply the policy to its failure.

        Raises:
            ApplicationError: this worker does not serve the agent.
        """
        services = self.services
        agent = await served_agent(services, lost.where.agent)
        tool = services.tools.find(lost.where.agent, lost.call.name)
        error = _error(lost)
        attempt = ToolCallAttempt(
            call=lost.call,
            step=lost.step,
            attempt=lost.attempts,
            repaired_by=lost.repaired_by,
            decision=lost.decision,
            mcp_server=tool.mcp_server if tool else None,
        )
        unwritten = range(lost.attempts if lost.written is None else lost.written + 1, lost.attempts)
        for number in unwritten:  # the last attempt was lost as well, before it could write them
            earlier = replace(attempt, attempt=number, decision=None)
            services.telemetry.tool_call(lost.where, earlier, start=lost.started).lose()
        span = services.telemetry.tool_call(lost.where, attempt, start=lost.started)
        failure = await apply_policy(error, policy_for(error, agent=agent, tool=tool), services.runtime)
        failure.end_span(span)
        return ToolOutcome(text=failure.text, error=failure.error, failure=failure.failure, attempts=lost.attempts)

    @activity.defn(name=FINISH_RUN)
    async def finish_run(self, finished: FinishRun) -> None:
        """Write the closing span of a run."""
        self.services.telemetry.finish_run(finished, activity.info().workflow_type or "")


def _error(lost: LostCall) -> ToolCallError:
    if lost.failure is None:
        return ToolTimeoutError(lost.message, kind=lost.kind, tool_name=lost.call.name, call_id=lost.call.id)
    error = from_json(lost.failure)
    assert isinstance(error, ToolCallError)
    return error
