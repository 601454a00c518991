"""`MulliganAgents`: answers which agents the workers of its task queue serve. Programs that offer agents start it."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

from mulligan.wire.agent_list import AGENTS_WORKFLOW, LIST_AGENTS, AgentList
from mulligan.workflows import limits

__all__ = ["AgentListWorkflow"]


@workflow.defn(name=AGENTS_WORKFLOW, sandboxed=False)
class AgentListWorkflow:
    """One local activity: the worker that takes the workflow answers."""

    @workflow.run
    async def run(self) -> dict[str, Any]:
        """{`agents`}, each as JSON."""
        listed: AgentList = await workflow.execute_local_activity(
            LIST_AGENTS,
            result_type=AgentList,
            start_to_close_timeout=limits.RECORD_TIMEOUT,
            retry_policy=limits.RECORD_RETRY,
        )
        return listed.model_dump(mode="json")
