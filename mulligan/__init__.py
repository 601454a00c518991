"""Mulligan: agents as Temporal workflows. Each step is an activity; the model gets feedback on each of its mistakes."""

from typing import TYPE_CHECKING, Any

from mulligan.adopt.adopt import adopt
from mulligan.agent import Agent
from mulligan.content import Audio, ContentError, File, Image, Media, Part, Text
from mulligan.endpoint_model import Model
from mulligan.errors import (
    DeclarationError,
    InvalidActivityResultError,
    InvalidRunInputError,
    InvalidToolInputError,
    ModelRequestError,
    ModelUnavailableError,
    MulliganError,
    MultipleStructuredOutputsError,
    StructuredOutputError,
    StructuredOutputValidationError,
    ToolCallError,
    ToolExecutionError,
    ToolTimeoutError,
    UnknownToolError,
    UpdateRefusedError,
    error_of,
)
from mulligan.features.agent_feature import AgentFeature
from mulligan.features.approvals import Approvals
from mulligan.features.background import Background
from mulligan.features.batch import Batch
from mulligan.features.calls_in_text import CallsInText
from mulligan.features.clearing import ClearToolResults
from mulligan.features.code_mode import CodeMode
from mulligan.features.compaction import Compaction
from mulligan.features.guarded import Guarded
from mulligan.features.guardrails import AnswerAgain, Guardrails
from mulligan.features.skills import Skills
from mulligan.features.tool_search import ToolSearch
from mulligan.fixer import InvalidToolInput, ask_model
from mulligan.mcp import McpServer
from mulligan.mcp_auth import OAuthClientCredentials, OAuthLogin
from mulligan.output import ProviderStrategy, ToolStrategy, output_of
from mulligan.provider_tool import ProviderTool
from mulligan.run_input import RunInput
from mulligan.score import score
from mulligan.script import Call, Say, Script, last_result
from mulligan.sub_agent_output import Untrusted
from mulligan.tool import Tool, ToolContext, ToolError, tool
from mulligan.values import (
    AssistantMessage,
    Consumption,
    Decision,
    ErrorInfo,
    Message,
    Repair,
    RunResult,
    Step,
    StepCompaction,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from mulligan.wire.updates import Answer, Decide, Pending, SendMessage, Stop

if TYPE_CHECKING:
    from mulligan import events
    from mulligan.client.connect import connect
    from mulligan.client.converter import data_converter
    from mulligan.client.fork_run import ForkError, fork_run
    from mulligan.client.read_run import read_steps
    from mulligan.client.resume_run import AlreadyResumedError, PromptNeededError, RunOpenError, resume_run
    from mulligan.client.run_state import NoWorkerError, ResumeError, RunNotFoundError
    from mulligan.worker.temporal_plugin import MulliganPlugin
    from mulligan.workflows.durable_agent import DurableAgent

__all__ = [
    "Agent",
    "AgentFeature",
    "AlreadyResumedError",
    "Answer",
    "AnswerAgain",
    "Approvals",
    "AssistantMessage",
    "Audio",
    "Background",
    "Batch",
    "Call",
    "CallsInText",
    "ClearToolResults",
    "CodeMode",
    "Compaction",
    "Consumption",
    "ContentError",
    "Decide",
    "Decision",
    "DeclarationError",
    "DurableAgent",
    "ErrorInfo",
    "File",
    "ForkError",
    "Guarded",
    "Guardrails",
    "Image",
    "InvalidActivityResultError",
    "InvalidRunInputError",
    "InvalidToolInput",
    "InvalidToolInputError",
    "McpServer",
    "Media",
    "Message",
    "Model",
    "ModelRequestError",
    "ModelUnavailableError",
    "MulliganError",
    "MulliganPlugin",
    "MultipleStructuredOutputsError",
    "NoWorkerError",
    "OAuthClientCredentials",
    "OAuthLogin",
    "Part",
    "Pending",
    "PromptNeededError",
    "ProviderStrategy",
    "ProviderTool",
    "Repair",
    "ResumeError",
    "RunInput",
    "RunNotFoundError",
    "RunOpenError",
    "RunResult",
    "Say",
    "Script",
    "SendMessage",
    "Skills",
    "Step",
    "StepCompaction",
    "Stop",
    "StructuredOutputError",
    "StructuredOutputValidationError",
    "Text",
    "Tool",
    "ToolCall",
    "ToolCallError",
    "ToolContext",
    "ToolError",
    "ToolExecutionError",
    "ToolMessage",
    "ToolSearch",
    "ToolStrategy",
    "ToolTimeoutError",
    "UnknownToolError",
    "Untrusted",
    "UpdateRefusedError",
    "Usage",
    "UserMessage",
    "adopt",
    "ask_model",
    "connect",
    "data_converter",
    "error_of",
    "events",
    "fork_run",
    "last_result",
    "output_of",
    "read_steps",
    "resume_run",
    "score",
    "tool",
]

_LAZY = {
    "AlreadyResumedError": "mulligan.client.resume_run",
    "DurableAgent": "mulligan.workflows.durable_agent",
    "ForkError": "mulligan.client.fork_run",
    "MulliganPlugin": "mulligan.worker.temporal_plugin",
    "NoWorkerError": "mulligan.client.run_state",
    "PromptNeededError": "mulligan.client.resume_run",
    "ResumeError": "mulligan.client.run_state",
    "RunNotFoundError": "mulligan.client.run_state",
    "RunOpenError": "mulligan.client.resume_run",
    "connect": "mulligan.client.connect",
    "data_converter": "mulligan.client.converter",
    "fork_run": "mulligan.client.fork_run",
    "read_steps": "mulligan.client.read_run",
    "resume_run": "mulligan.client.resume_run",
}
"""Imported at their first use: `import mulligan` loads neither workflow code nor a Temporal client."""


def __getattr__(name: str) -> Any:
    import importlib

    if name in ("events", "serve"):
        return importlib.import_module(f"mulligan.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'mulligan' has no attribute {name!r}")
