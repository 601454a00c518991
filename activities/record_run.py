"""What another worker or the workflow saw, put on the trace here: a failed tool call, and the end of a run.

Local activities: they run on the workflow's own worker, which knows the agent.
"""

from __future__ import annotations

from dataclasses import dataclass

from temporalio import activity

from mulligan.activities.answers.failure_policy import nearest, settle
from mulligan.activities.services import Services
from mulligan.errors import ToolCallError, ToolTimeoutError, from_json
from mulligan.observe.spans import ToolCallAttempt
from mulligan.wire.run_end import FINISH_RUN, FinishRun
from mulligan.wire.tool_call import RECORD_LOST_CALL, LostCall, ToolOutcome


@dataclass(frozen=True)
class RecordRunActivities:
    """The activities, with what the worker gives them."""

    services: Services

    @activity.defn(name=RECORD_LOST_CALL)
    async def record_lost_call(self, lost: LostCall) -> ToolOutcome:
        """The span of a call whose own worker did not write it, and the text for it by the nearest policy."""
        agent = self.services.registry.agents.get(lost.where.agent)
        tool = self.services.tools.find(lost.where.agent, lost.call.name) if agent else None
        error: ToolCallError = ToolTimeoutError(
            lost.message, kind=lost.kind, tool_name=lost.call.name, call_id=lost.call.id
        )
        if lost.failure is not None:
            elsewhere = from_json(lost.failure)
            assert isinstance(elsewhere, ToolCallError)
            error = elsewhere
        policy = nearest(error, tool.handle_errors if tool else None, agent.handle_errors if agent else None)
        server = tool.mcp_server if tool else None
        attempt = ToolCallAttempt(call=lost.call, step=lost.step, attempt=lost.attempts, mcp_server=server)
        span = self.services.telemetry.tool_call(lost.where, attempt, start=lost.started)
        told = await settle(error, policy, self.services.runtime)
        told.close(span)
        return ToolOutcome(text=told.text, error=told.error, failure=told.failure, attempts=lost.attempts)

    @activity.defn(name=FINISH_RUN)
    async def finish_run(self, finished: FinishRun) -> None:
        """The closing span of a run."""
        self.services.telemetry.finish_run(finished, activity.info().workflow_type or "")
