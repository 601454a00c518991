"""Strands Agents with Temporal's plugin, set up as in the package's README.

Differences: retries of the model client are off, as the README requires, nothing is printed to stdout, and the timeout of
the tool is a day, because one call of the benchmark waits. Its OpenAI model uses Chat Completions and streams.
"""

import asyncio
from datetime import timedelta

from strands.models.openai import OpenAIModel
from temporalio import activity, workflow
from temporalio.strands_agents import StrandsPlugin, TemporalAgent
from temporalio.strands_agents.workflow import activity_as_tool

from benchmarks import serving
from benchmarks.passage import A_DAY, HOLD, passage


@activity.defn
async def look(number: int) -> str:
    """Give 1 KB."""
    if number == HOLD:
        await asyncio.sleep(A_DAY)
    return passage(number)


@workflow.defn
class BenchWorkflow:
    """One run."""

    def __init__(self) -> None:
        self.agent = TemporalAgent(
            model="bench",
            callback_handler=None,
            start_to_close_timeout=timedelta(seconds=60),
            tools=[activity_as_tool(look, start_to_close_timeout=timedelta(seconds=A_DAY))],
        )

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Run until the model's final answer."""
        return str(await self.agent.invoke_async(prompt))


if __name__ == "__main__":
    models = {"bench": lambda: OpenAIModel(client_args={"max_retries": 0}, model_id="bench")}
    serving.main([BenchWorkflow], [look], [StrandsPlugin(models=models)])
