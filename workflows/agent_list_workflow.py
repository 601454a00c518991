"""`MulliganAgents`: answers which agents the workers of its task queue serve. Programs that offer agents start it."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError

from mulligan.wire.agent_list import AGENTS_WORKFLOW, LIST_AGENTS, AgentList
from mulligan.workflows import limits
from mulligan.workflows.activity_result import read_result


@workflow.defn(name=AGENTS_WORKFLOW, sandboxed=False)
class AgentListWorkflow:
    """The worker that takes the workflow answers, and names the queues of others that serve other agents."""

    @workflow.run
    async def run(self) -> dict[str, Any]:
        """{`agents`}, each as JSON, in the order of their names."""
        raw: RawValue = await workflow.execute_local_activity(
            LIST_AGENTS,
            result_type=RawValue,
            start_to_close_timeout=limits.RECORD_TIMEOUT,
            retry_policy=limits.RECORD_RETRY,
        )
        own = read_result(LIST_AGENTS, raw, AgentList)
        agents = {agent["name"]: agent for agent in own.agents}
        for queue in own.queues[: limits.QUEUES_TRIED]:
            agents = await _read_queue(queue) | agents
        return {"agents": [agents[name] for name in sorted(agents)]}


async def _read_queue(queue: str) -> dict[str, dict[str, Any]]:
    """The agents of the workers of another queue, by their names. None of them if no worker is there any more."""
    try:
        raw: RawValue = await workflow.execute_activity(
            LIST_AGENTS,
            result_type=RawValue,
            task_queue=queue,
            schedule_to_close_timeout=limits.LIST_AGENTS_TIMEOUT,
        )
        listed = read_result(LIST_AGENTS, raw, AgentList)
    except ActivityError:
        return {}
    return {agent["name"]: agent for agent in listed.agents}
