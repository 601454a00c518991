"""The objects that the activities of one worker share. The worker creates them once."""

from __future__ import annotations

from dataclasses import dataclass

from mulligan.activities.mcp.servers import McpServers
from mulligan.activities.models.available_providers import AvailableProviders
from mulligan.activities.models.retry_budget import RetryBudget
from mulligan.activities.registry import Registry
from mulligan.activities.run_agents import RunAgents
from mulligan.activities.run_data.conversation_cache import ConversationCache, conversation_key
from mulligan.activities.run_data.definitions import Definitions
from mulligan.activities.spending import Spending
from mulligan.activities.tool_running.find_tool import ToolFinder
from mulligan.activities.tool_running.isolated import ChildProcesses
from mulligan.activities.tool_running.resources import Resources
from mulligan.activities.tool_running.tool_runtime import ToolRuntime
from mulligan.client.callback_tokens import CallbackTokens
from mulligan.client.content_store import ContentStore
from mulligan.client.live_pace import LivePace
from mulligan.client.registered_attributes import RegisteredAttributes
from mulligan.client.served_agents import ServedAgents
from mulligan.content import Part
from mulligan.live.publisher import Publisher
from mulligan.observe.telemetry import Telemetry
from mulligan.prices import Prices
from mulligan.values import ErrorInfo, ToolCall
from mulligan.wire.run_context import RunContext
from mulligan.wire.tool_call import tool_message


@dataclass(frozen=True, kw_only=True)
class Services:
    """The shared objects, and the settings that activities read.

    `carry_bytes`: bytes that a run may pass to the run that continues it; None for the workflow's default.
    `contents`: the content storage, if the settings name one.
    `live`: what tells those who watch of this process's model calls; None: there is no live channel.
    `live_pace`: how often what a model writes is sent in heartbeats; None: it is not.
    `model_task_queue`: where model calls are scheduled; None for the task queue of their run.
    `served`: the worker's task queue and agents; None if other workers are not looked for.
    """

    registry: Registry
    agents: RunAgents
    providers: AvailableProviders
    definitions: Definitions
    conversations: ConversationCache
    telemetry: Telemetry
    runtime: ToolRuntime
    child_processes: ChildProcesses
    resources: Resources
    tools: ToolFinder
    mcp_servers: McpServers
    retry_budget: RetryBudget
    prices: Prices
    registered_attributes: RegisteredAttributes
    callback_tokens: CallbackTokens
    budgets: Spending
    contents: ContentStore | None = None
    carry_bytes: int | None = None
    live: Publisher | None = None
    live_pace: LivePace | None = None
    model_task_queue: str | None = None
    served: ServedAgents | None = None

    def contents_of(self, context: RunContext) -> ContentStore | None:
        """The content storage of the tenant of a run."""
        return self.contents and self.contents.of(context.tenant)

    def cache_result(
        self,
        context: RunContext,
        call: ToolCall,
        text: str,
        error: ErrorInfo | None,
        content: list[Part] | None = None,
    ) -> None:
        """Keep the result of a call in this worker's memory, for the next model call of its conversation."""
        self.conversations.put_result(conversation_key(context), tool_message(call, text, error, content))
