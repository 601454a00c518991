"""pydantic-ai with its Temporal integration, set up as in its documentation, with a heartbeat timeout."""

from __future__ import annotations

# pydantic-ai would import it in the first workflow task, which takes longer than the SDK allows on a busy machine.
import pydantic_ai.models.openai  # noqa: F401
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, PydanticAIWorkflow, TemporalDurability
from temporalio import workflow
from temporalio.workflow import ActivityConfig

with workflow.unsafe.imports_passed_through():
    from benchmarks import serving
    from tests.chaos.rivals.effects import HEARTBEAT, LIMIT
    from tests.exam.asked_database import facts
    from tests.exam.rivals.typed_tools import typed_tools

    POLICY, TOOLS = facts()["policy"], typed_tools()

MISTAKES = 20
"""How often a tool may be called wrongly; its default is once."""
limits = ActivityConfig(start_to_close_timeout=LIMIT, heartbeat_timeout=HEARTBEAT)
clerk = Agent(
    "openai-chat:exam",
    name="clerk",
    instructions=POLICY,
    retries=MISTAKES,
    capabilities=[TemporalDurability(activity_config=limits)],
)
for each, policy in TOOLS.items():
    clerk.tool_plain(metadata={"temporal": ActivityConfig(retry_policy=policy)})(each)


@workflow.defn
class ChaosWorkflow(PydanticAIWorkflow):
    """One run."""

    __pydantic_ai_agents__ = [clerk]

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Run until the model's final answer."""
        result = await clerk.run(prompt, usage_limits=UsageLimits(request_limit=None))
        return result.output


if __name__ == "__main__":
    serving.main([ChaosWorkflow], [], [PydanticAIPlugin()])
