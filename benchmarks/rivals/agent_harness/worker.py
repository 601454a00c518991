"""Temporal's agent harness with the OpenAI Agents SDK, set up as in the package's README and the docstring of its plugin.

The model is streamed onto the harness's event stream (`stream_to_provider`, `harness_observer_factory`; Responses API), and
the tool is an `activity_tool_defn` that needs no approval. An agent of the harness is a session, which takes no prompt: the
driver starts it, sends the prompt as the update `send_agent_message`, and then the signal `close`; the session ends after
the turn. Differences: tracing is off (OPENAI_AGENTS_DISABLE_TRACING, and no spans of Temporal), `max_turns` is raised, the
timeout of the tool is a day, because one call of the benchmark waits, a turn without an answer fails the workflow (the
harness would complete it), and `openai` is older than 3.9: see pyproject.toml. Retries of the HTTP client are off in the
plugin. The size of a history varies by some events, because published events are sent in batches, by time.

Its replay in a new process fails for a reason not found yet ("Model did not produce a final response!"): no such figure.
"""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.contrib.workflow_streams import WorkflowStream
from temporalio.exceptions import ApplicationError
from temporalio.workflow import ActivityConfig

with workflow.unsafe.imports_passed_through():
    from agents import Agent, Runner
    from temporal_agent_harness.ai_sdks.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
    from temporal_agent_harness.ai_sdks.openai_agents_harness import (
        as_openai_agent_tool,
        harness_observer_factory,
        stream_to_provider,
    )
    from temporal_agent_harness.harness import AgentWorkflowRunner, agent
    from temporal_agent_harness.harness.agent_protocol import AgentConfig, TextMessage, TextReply, ToolApprovalPolicy
    from temporal_agent_harness.plugin import AgentHarnessPlugin

from benchmarks import serving
from benchmarks.passage import A_DAY, HOLD, passage


@agent.activity_tool_defn(
    inherently_safe=True, activity_config=ActivityConfig(start_to_close_timeout=timedelta(seconds=A_DAY))
)
async def look(number: int) -> str:
    """Give 1 KB."""
    if number == HOLD:
        await asyncio.sleep(A_DAY)
    return passage(number)


@agent.defn
class BenchWorkflow:
    """One session, of one turn."""

    @agent.init
    def __init__(self, config: AgentConfig) -> None:
        self.runner = AgentWorkflowRunner(
            config, stream=WorkflowStream(), approval_policy_default=ToolApprovalPolicy.allow_inherently_safe()
        )
        self.agent = Agent(name="bench", model="bench", tools=[as_openai_agent_tool(self.runner, look)])
        self.answered = False

    @agent.accepts
    async def ask(self, message: TextMessage) -> TextReply:
        """Run until the model's final answer."""
        result = Runner.run_streamed(self.agent, message.text, context=self.runner, max_turns=1_000_000)
        async for _ in result.stream_events():
            pass
        self.answered = True
        return TextReply(text=str(result.final_output))

    @agent.teardown
    async def teardown(self) -> None:
        """Fail if the turn has failed."""
        if not self.answered:
            raise ApplicationError("the turn ended without an answer", non_retryable=True)


if __name__ == "__main__":
    model = ModelActivityParameters(
        start_to_close_timeout=timedelta(seconds=60),
        heartbeat_timeout=timedelta(seconds=30),
        stream_to_provider=stream_to_provider,
    )
    agents = OpenAIAgentsPlugin(model_params=model, observer_factory=harness_observer_factory, add_temporal_spans=False)
    serving.main([BenchWorkflow], [], [agents, AgentHarnessPlugin(tools=[look])])
