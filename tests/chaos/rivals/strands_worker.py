"""Strands Agents with Temporal's plugin, set up as in the package's README, with a heartbeat timeout."""

from __future__ import annotations

from strands.models.openai import OpenAIModel
from temporalio import workflow
from temporalio.strands_agents import StrandsPlugin, TemporalAgent
from temporalio.strands_agents.workflow import activity_as_tool

from benchmarks import serving
from tests.chaos.rivals.effects import FETCH, HEARTBEAT, LIMIT, PAY, fetch, pay


@workflow.defn
class ChaosWorkflow:
    """One run."""

    def __init__(self) -> None:
        self.agent = TemporalAgent(
            model="chaos",
            callback_handler=None,
            start_to_close_timeout=LIMIT,
            heartbeat_timeout=HEARTBEAT,
            tools=[
                activity_as_tool(each, start_to_close_timeout=LIMIT, heartbeat_timeout=HEARTBEAT, retry_policy=policy)
                for each, policy in ((pay, PAY), (fetch, FETCH))
            ],
        )

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Run until the model's final answer."""
        return str(await self.agent.invoke_async(prompt))


if __name__ == "__main__":
    models = {"chaos": lambda: OpenAIModel(client_args={"max_retries": 0}, model_id="chaos")}
    serving.main([ChaosWorkflow], [pay, fetch], [StrandsPlugin(models=models)])
