"""The OpenAI Agents SDK with Temporal's plugin, set up as in its documentation, with a heartbeat timeout."""

from __future__ import annotations

from agents import Agent, OpenAIProvider, Runner
from temporalio import workflow
from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
from temporalio.openai_agents.workflow import activity_as_tool

from benchmarks import serving
from tests.chaos.rivals.effects import FETCH, HEARTBEAT, LIMIT, PAY, fetch, pay


@workflow.defn
class ChaosWorkflow:
    """One run."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Run until the model's final answer."""
        tools = [
            activity_as_tool(each, start_to_close_timeout=LIMIT, heartbeat_timeout=HEARTBEAT, retry_policy=policy)
            for each, policy in ((pay, PAY), (fetch, FETCH))
        ]
        agent = Agent(name="clerk", model="chaos", tools=tools)
        result = await Runner.run(agent, input=prompt, max_turns=1_000)
        return str(result.final_output)


if __name__ == "__main__":
    limits = ModelActivityParameters(start_to_close_timeout=LIMIT, heartbeat_timeout=HEARTBEAT)
    provider = OpenAIProvider(use_responses=False)
    plugin = OpenAIAgentsPlugin(model_params=limits, model_provider=provider, add_temporal_spans=False)
    serving.main([ChaosWorkflow], [pay, fetch], [plugin])
