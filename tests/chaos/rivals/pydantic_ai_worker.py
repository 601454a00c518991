"""pydantic-ai with its Temporal integration, set up as in its documentation, with a heartbeat timeout."""

from __future__ import annotations

# pydantic-ai would import it in the first workflow task, which takes longer than the SDK allows on a busy machine.
import pydantic_ai.models.openai  # noqa: F401
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, PydanticAIWorkflow, TemporalDurability
from temporalio import workflow
from temporalio.workflow import ActivityConfig

from benchmarks import serving
from tests.chaos.rivals.effects import FETCH, HEARTBEAT, LIMIT, PAY, effect


async def pay(milliseconds: int) -> str:
    """An effect that must happen at most once."""
    await effect("pay", milliseconds)
    return "paid"


async def fetch(milliseconds: int) -> str:
    """An effect that may be repeated twice."""
    await effect("fetch", milliseconds)
    return "fetched"


limits = ActivityConfig(start_to_close_timeout=LIMIT, heartbeat_timeout=HEARTBEAT)
clerk = Agent("openai-chat:chaos", name="clerk", capabilities=[TemporalDurability(activity_config=limits)])
clerk.tool_plain(metadata={"temporal": ActivityConfig(retry_policy=PAY)})(pay)
clerk.tool_plain(metadata={"temporal": ActivityConfig(retry_policy=FETCH)})(fetch)


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
