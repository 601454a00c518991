"""Every name of a span and an attribute.

`gen_ai.*` and `error.type` are OpenTelemetry's semantic conventions for GenAI, 1.41 (github.com/open-telemetry/semantic-
conventions, docs/gen-ai): Jaeger's GenAI view and other backends read these. They are constants of our own because the
package `opentelemetry-semantic-conventions` marks its constants as incubating and moves them. docs/traces.md explains each.
"""

from __future__ import annotations

INVOKE_AGENT = "invoke_agent"
"""Followed by the agent's name: the root of a run, or of a turn of a `DurableAgent`."""
AGENT_STEPS = "agent.steps"
"""The parent of a hundred steps, from step 101 on."""
AGENT_FINISH = "agent.finish"
AGENT_REQUEST, AGENT_DECISION = "agent.request", "agent.decision"
"""A call begins to wait for a person; what was decided on it."""
CHAT = "chat"
"""Followed by the model's name: one attempt of a model call."""
TOOL_CALL = "ai.toolCall"
EXECUTE_TOOL = "execute_tool"

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION_ID = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - not a password
TOOL_NAME, TOOL_CALL_ID, TOOL_TYPE = "gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.tool.type"
TOOL_ARGUMENTS, TOOL_RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
MCP_METHOD, TOOLS_CALL = "mcp.method.name", "tools/call"
"""OpenTelemetry's attribute for MCP, and its value. It has no attribute for the server's name."""
MCP_SERVER = "mulligan.mcp.server"
ERROR_TYPE = "error.type"
EXCEPTION, EXCEPTION_TYPE, EXCEPTION_MESSAGE = "exception", "exception.type", "exception.message"

AI_NAME, AI_ID, AI_ARGS = "ai.toolCall.name", "ai.toolCall.id", "ai.toolCall.args"
AI_RESULT, AI_ERROR = "ai.toolCall.result", "ai.toolCall.error"

STEP = "mulligan.step"
LAST_STEP = "mulligan.step.last"
ATTEMPT = "mulligan.attempt"
RECOVERED = "mulligan.recovered"
REPAIRS = "mulligan.repairs"
REPAIRED_CALL = "mulligan.mends"
"""The id of the tool call whose arguments a second model repairs."""
COMPACTION = "mulligan.compaction"
SUB_RUN = "mulligan.sub_run"
FALLBACK = "mulligan.fallback"
DECISION_KIND, DECISION, DECISION_REASON = "mulligan.decision.kind", "mulligan.decision", "mulligan.decision.reason"
DECIDED_BY, DECIDED_AT, EDITED = "mulligan.decision.by", "mulligan.decision.at", "mulligan.decision.edited"
STATUS = "mulligan.status"
STEPS = "mulligan.steps"
COST = "mulligan.cost"
RECOVERED_FAILURES = "mulligan.recovered_failures"
CACHE_RESULT = "mulligan.prefix_cache.result"
RESUMED_WORKFLOW, RESUMED_RUN = "mulligan.resumed_from.workflow_id", "mulligan.resumed_from.run_id"
METADATA = "mulligan.metadata."
"""Followed by a key of the run's metadata."""

WORKFLOW_ID, RUN_ID, WORKFLOW_TYPE = "temporal.workflow_id", "temporal.run_id", "temporal.workflow_type"
