"""What a provider is told of an agent: pinned when a run opens, so it stands in history (see handoff)."""

from __future__ import annotations

from pydantic import BaseModel, Field, JsonValue


class ToolDefinition(BaseModel):
    """A tool as the model is shown it."""

    name: str
    description: str
    parameters: dict[str, JsonValue]


class OutputFormat(BaseModel):
    """The JSON schema that the provider makes the model's answer keep to."""

    name: str
    description: str = ""
    json_schema: dict[str, JsonValue]


class Definition(BaseModel):
    """What the provider is told of an agent in each request: pinned when the run opens. Output tools are tools here.

    `mcp`: by a tool's name, what its MCP server calls it, where the one does not end with the other.
    """

    instructions: str
    tools: list[ToolDefinition]
    output: OutputFormat | None = Field(default=None, exclude_if=lambda value: value is None)
    mcp: dict[str, str] = Field(default={}, exclude_if=lambda value: not value)
