"""Mulligan: agents as Temporal workflows. Each step is an activity; a model's mistake is told to the model."""

from typing import TYPE_CHECKING, Any

from mulligan.agent import Agent
from mulligan.errors import (
    DeclarationError,
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
from mulligan.fixer import InvalidToolInput, ask_model
from mulligan.mcp import McpServer
from mulligan.output import ProviderStrategy, ToolStrategy, output_of
from mulligan.run_input import RunInput
from mulligan.script import Call, Say, Script
from mulligan.tool import Tool, ToolContext, ToolError, tool
from mulligan.values import (
    AssistantMessage,
    Compaction,
    Decision,
    ErrorInfo,
    Message,
    Repair,
    RunResult,
    Step,
    Took,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from mulligan.wire.updates import Answer, Decide, Pending, SendMessage, Stop

if TYPE_CHECKING:
    from mulligan import events
    from mulligan.client.connect import connect, data_converter
    from mulligan.client.resume_run import PromptNeededError, resume_run
    from mulligan.worker.temporal_plugin import MulliganPlugin
    from mulligan.workflows.durable_agent import DurableAgent

__all__ = [
    "Agent",
    "Answer",
    "AssistantMessage",
    "Call",
    "Compaction",
    "Decide",
    "Decision",
    "DeclarationError",
    "DurableAgent",
    "ErrorInfo",
    "InvalidRunInputError",
    "InvalidToolInput",
    "InvalidToolInputError",
    "McpServer",
    "Message",
    "ModelRequestError",
    "ModelUnavailableError",
    "MulliganError",
    "MulliganPlugin",
    "MultipleStructuredOutputsError",
    "Pending",
    "PromptNeededError",
    "ProviderStrategy",
    "Repair",
    "RunInput",
    "RunResult",
    "Say",
    "Script",
    "SendMessage",
    "Step",
    "Stop",
    "StructuredOutputError",
    "StructuredOutputValidationError",
    "Took",
    "Tool",
    "ToolCall",
    "ToolCallError",
    "ToolContext",
    "ToolError",
    "ToolExecutionError",
    "ToolMessage",
    "ToolStrategy",
    "ToolTimeoutError",
    "UnknownToolError",
    "UpdateRefusedError",
    "Usage",
    "UserMessage",
    "ask_model",
    "connect",
    "data_converter",
    "error_of",
    "events",
    "output_of",
    "resume_run",
    "tool",
]

_LATER = {
    "DurableAgent": "mulligan.workflows.durable_agent",
    "MulliganPlugin": "mulligan.worker.temporal_plugin",
    "connect": "mulligan.client.connect",
    "data_converter": "mulligan.client.connect",
    "PromptNeededError": "mulligan.client.resume_run",
    "resume_run": "mulligan.client.resume_run",
}
"""Handed on when asked for: the first two look upward, the others would load a Temporal client at import."""


def __getattr__(name: str) -> Any:
    import importlib

    if name == "events":
        return importlib.import_module("mulligan.events")
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'mulligan' has no attribute {name!r}")
