"""What the author of a provider imports: the protocol, the plugin, and what both contain (docs/own-provider.md)."""

from mulligan.activities.models.protocol import (
    AnswersInBackground,
    AnswersInBatches,
    CreatedResponse,
    FinishReason,
    Mistake,
    MistakeKind,
    OnCall,
    Provider,
    ProviderBatches,
    Reply,
    Request,
    TakesContent,
    ToolsOnDemand,
    Unavailable,
    Written,
)
from mulligan.endpoint import Endpoint
from mulligan.provider_plugin import ProviderPlugin, register_provider
from mulligan.wire.agent_facts import Definition, HiddenTool, OutputFormat, ProviderToolDefinition, ToolDefinition

__all__ = [
    "AnswersInBackground",
    "AnswersInBatches",
    "CreatedResponse",
    "Definition",
    "Endpoint",
    "FinishReason",
    "HiddenTool",
    "Mistake",
    "MistakeKind",
    "OnCall",
    "OutputFormat",
    "Provider",
    "ProviderBatches",
    "ProviderPlugin",
    "ProviderToolDefinition",
    "Reply",
    "Request",
    "TakesContent",
    "ToolDefinition",
    "ToolsOnDemand",
    "Unavailable",
    "Written",
    "register_provider",
]
