"""`AgentWorkflow` in Temporal's sandbox, which raises on nondeterminism. Workers run it without, for speed."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from mulligan.workflows.agent_workflow import NO_INPUT, AgentWorkflow


@workflow.defn(name="AgentWorkflow")
class Sandboxed(AgentWorkflow):
    @workflow.run
    async def run(self, start: RawValue = NO_INPUT) -> dict[str, Any]:
        return await super().run(start)
