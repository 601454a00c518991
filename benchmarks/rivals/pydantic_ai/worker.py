"""pydantic-ai with its Temporal integration, set up as documented (`TemporalDurability`, `PydanticAIPlugin`).

Differences: the limit of requests is raised, and the timeout of the tool is a day, because one call of the benchmark
waits. `ContinuedWorkflow` also has the `continue_as_new` handler, which carries the messages over.
"""

import asyncio
from datetime import timedelta

# pydantic-ai would import it in the first workflow task: on a busy machine that exceeds the SDK's deadlock timeout, and
# every later task of the worker fails on the partly imported module.
import pydantic_ai.models.openai  # noqa: F401
from pydantic_ai import Agent, RunContext, UsageLimits
from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, PydanticAIWorkflow, TemporalDurability
from pydantic_ai.messages import ModelMessage
from temporalio import workflow
from temporalio.workflow import ActivityConfig

from benchmarks import serving
from benchmarks.passage import A_DAY, HOLD, passage

TOOL = {"temporal": ActivityConfig(start_to_close_timeout=timedelta(seconds=A_DAY))}
NO_LIMIT = UsageLimits(request_limit=None)


async def look(number: int) -> str:
    """Give 1 KB."""
    if number == HOLD:
        await asyncio.sleep(A_DAY)
    return passage(number)


def hand_over(ctx: RunContext[None]) -> None:
    """Continue in a new run with all messages."""
    workflow.continue_as_new(args=["", ctx.messages])


bench = Agent("openai:bench", name="bench", capabilities=[TemporalDurability()])
bench.tool_plain(metadata=TOOL)(look)

continued = Agent("openai:bench", name="continued", capabilities=[TemporalDurability(continue_as_new=hand_over)])
continued.tool_plain(metadata=TOOL)(look)


@workflow.defn
class BenchWorkflow(PydanticAIWorkflow):
    """One run."""

    __pydantic_ai_agents__ = [bench]

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Run until the model's final answer."""
        result = await bench.run(prompt, usage_limits=NO_LIMIT)
        return result.output


@workflow.defn
class ContinuedWorkflow(PydanticAIWorkflow):
    """One run, which continues as new when Temporal suggests it."""

    __pydantic_ai_agents__ = [continued]

    @workflow.run
    async def run(self, prompt: str, messages: list[ModelMessage]) -> str:
        """Run until the model's final answer."""
        result = await continued.run(prompt or None, message_history=messages or None, usage_limits=NO_LIMIT)
        return result.output


if __name__ == "__main__":
    serving.main([BenchWorkflow, ContinuedWorkflow], [], [PydanticAIPlugin()])
