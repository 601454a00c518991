"""The OpenAI Agents SDK with Temporal's plugin, set up as in the package's README.

Differences: tracing is off (OPENAI_AGENTS_DISABLE_TRACING, and no spans of Temporal), `max_turns` is raised,
and the timeout of the tool is a day, because one call of the benchmark waits.
"""

import asyncio
from datetime import timedelta

from agents import Agent, Runner
from temporalio import activity, workflow
from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
from temporalio.openai_agents.workflow import activity_as_tool

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

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Run until the model's final answer."""
        agent = Agent(
            name="bench",
            model="bench",
            tools=[activity_as_tool(look, start_to_close_timeout=timedelta(seconds=A_DAY))],
        )
        result = await Runner.run(agent, input=prompt, max_turns=1_000_000)
        return str(result.final_output)


if __name__ == "__main__":
    plugin = OpenAIAgentsPlugin(
        model_params=ModelActivityParameters(start_to_close_timeout=timedelta(seconds=60)), add_temporal_spans=False
    )
    serving.main([BenchWorkflow], [look], [plugin])
