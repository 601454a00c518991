"""The OpenAI Agents SDK with Temporal's plugin, set up as in its documentation, with a heartbeat timeout."""

from __future__ import annotations

from agents import Agent, OpenAIProvider, RunConfig, Runner
from temporalio import activity, workflow
from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
from temporalio.openai_agents.workflow import activity_as_tool

with workflow.unsafe.imports_passed_through():
    from benchmarks import serving
    from tests.chaos.rivals.effects import HEARTBEAT, LIMIT
    from tests.exam.asked_database import facts
    from tests.exam.rivals.typed_tools import typed_tools

    POLICY = facts()["policy"]
    TOOLS = {activity.defn(each): policy for each, policy in typed_tools().items()}


@workflow.defn
class ChaosWorkflow:
    """One run."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Run until the model's final answer."""
        tools = [
            activity_as_tool(each, start_to_close_timeout=LIMIT, heartbeat_timeout=HEARTBEAT, retry_policy=policy)
            for each, policy in TOOLS.items()
        ]
        agent = Agent(name="clerk", instructions=POLICY, model="exam", tools=tools)
        config = RunConfig(tool_not_found_behavior="return_error_to_model")  # by default it ends the run
        result = await Runner.run(agent, input=prompt, max_turns=1_000, run_config=config)
        return str(result.final_output)


if __name__ == "__main__":
    limits = ModelActivityParameters(start_to_close_timeout=LIMIT, heartbeat_timeout=HEARTBEAT)
    provider = OpenAIProvider(use_responses=False)
    plugin = OpenAIAgentsPlugin(model_params=limits, model_provider=provider, add_temporal_spans=False)
    serving.main([ChaosWorkflow], [*TOOLS], [plugin])
