"""The agent of benchmarks/long_conversation.py with Temporal's plugin; its tool is an activity, as in the README of that."""

from datetime import timedelta

from agents import Agent, Runner
from temporalio import activity, workflow
from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
from temporalio.openai_agents.workflow import activity_as_tool

from benchmarks import serving
from benchmarks.passage import five_passages


@activity.defn
async def look(number: int) -> str:
    """Give 5 KB."""
    return five_passages(number)


@workflow.defn
class LongConversation:
    """One run."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Run until the model's final answer."""
        tool = activity_as_tool(look, start_to_close_timeout=timedelta(seconds=60))
        agent = Agent(name="bench", model="bench", tools=[tool])
        result = await Runner.run(agent, input=prompt, max_turns=1_000_000)
        return str(result.final_output)


if __name__ == "__main__":
    plugin = OpenAIAgentsPlugin(
        model_params=ModelActivityParameters(start_to_close_timeout=timedelta(seconds=60)), add_temporal_spans=False
    )
    serving.main([LongConversation], [look], [plugin])
