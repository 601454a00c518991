"""The parts of pydantic-ai that its documentation does not promise: all that adopting uses of them stands here."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.exceptions import ToolRetryError
from pydantic_ai.messages import InstructionPart, RetryPromptPart
from pydantic_ai.profiles.openai import OpenAIJsonSchemaTransformer
from pydantic_ai.tools import ToolDefinition

TRIED = ("2.68.0",)
"""The versions that the tests have run with."""
_INFRASTRUCTURE = ("ToolSearch", "PendingMessageDrainCapability", "NativeTool")
"""The capabilities that each agent has, and that of native tools."""
_PREFIXES = {"OpenAIResponsesModel": "openai", "OpenAIChatModel": "openai-chat", "AnthropicModel": "anthropic"}
_PREFIXES |= {"GoogleModel": "google"}
PROVIDERS = {"openai": "openai", "openai-responses": "openai", "openai-chat": "openai-chat", "anthropic": "anthropic"}
PROVIDERS |= {"google": "google", "google-gla": "google"}


def model_of(agent: Agent[Any, Any]) -> str | None:
    """The model of an agent as Mulligan names it; None where it has none, or one of another kind."""
    model = agent.model
    if isinstance(model, str):
        prefix, _, name = model.partition(":")
        return f"{PROVIDERS[prefix]}:{name}" if prefix in PROVIDERS else None
    prefix = next((_PREFIXES[each.__name__] for each in type(model).__mro__ if each.__name__ in _PREFIXES), "")
    return f"{prefix}:{model.model_name}" if model is not None and prefix else None


def prompts(agent: Agent[Any, Any]) -> list[Any]:
    """The system prompts and the instructions: texts, and functions of a RunContext or of nothing."""
    functions = [each.function for each in agent._system_prompt_functions]
    instructions = [each.instruction for each in agent._instructions]
    texts = [each.content if isinstance(each, InstructionPart) else each for each in instructions]
    return [*agent._system_prompts, *functions, *texts]


def text_of(returned: Any) -> str:
    """The text of what a function of an instruction has returned."""
    return str(returned.content if isinstance(returned, InstructionPart) else returned or "").strip()


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether a function of an instruction gets the RunContext."""
    return len(inspect.signature(function).parameters) > 0


def other_capabilities(agent: Agent[Any, Any]) -> list[str]:
    """The names of the capabilities that the agent was given."""
    leaves: list[Any] = []
    agent._root_capability.apply(leaves.append)
    return [name for each in leaves if (name := type(each).__name__) not in _INFRASTRUCTURE]


def native_tools(agent: Agent[Any, Any]) -> list[Any]:
    """The tools that the provider runs, but for its search of tools: Mulligan's feature for that is used."""
    return [each for each in agent._cap_native_tools if type(each).__name__ != "ToolSearchTool"]


def mcp_options(toolset: Any) -> dict[str, Any] | None:
    """The options of an `McpServer` that is the server of a toolset; None for another toolset, or one with hooks."""
    if (
        type(toolset).__name__ != "MCPToolset"
        or toolset.process_tool_call
        or toolset._auth_func
        or toolset._headers_func
    ):
        return None
    transport, name = toolset.client.transport, toolset.id or "mcp"
    kinds = [each.__name__ for each in type(transport).__mro__]
    if "StdioTransport" in kinds:
        command = [transport.command, *transport.args]
        return {"name": name, "command": command, "env": dict(transport.env or {}), "cwd": transport.cwd}
    if "StreamableHttpTransport" in kinds and transport.auth is None:
        return {"name": name, "url": str(transport.url), "headers": dict(transport.headers or {})}
    return None


def retries(agent: Agent[Any, Any]) -> tuple[int, int]:
    """How often a tool may ask for another call, and how often an output may be refused."""
    return agent._max_tool_retries, agent._max_output_retries


class Outputs:
    """What an agent may answer, and how an answer becomes the object that its functions return."""

    def __init__(self, agent: Agent[Any, Any]) -> None:
        self._schema = agent._output_schema
        self._validators = agent._output_validators

    @property
    def mode(self) -> str:
        """`text`, `tool`, `native`, `prompted`, or `image`."""
        mode = str(self._schema.mode)
        return "tool" if mode == "auto" else mode

    @property
    def or_text(self) -> bool:
        """Whether the model may answer in plain text as well as by an output tool."""
        return bool(self._schema.mode == "tool" and self._schema.allows_text)

    @property
    def may_be_image(self) -> bool:
        """Whether an image is among the types."""
        return bool(self._schema.allows_image)

    @property
    def may_defer(self) -> bool:
        """Whether DeferredToolRequests are among the types."""
        return bool(self._schema.allows_deferred_tools)

    def schemas(self) -> list[dict[str, Any]]:
        """The JSON schemas of the output tools, or of the one answer; their titles are the names."""
        if self.mode == "tool":
            tools = self._schema.toolset._tool_defs
            return [_titled(each.name, each.description, each.parameters_json_schema) for each in tools]
        definition = self._schema.object_def
        return [_titled(definition.name or "final_result", definition.description, definition.json_schema)]

    async def read(self, name: str | None, answer: Any, context: RunContext[Any]) -> Any:
        """The object of an answer. `name`: that of the output type; any other, or None: the answer is a text.

        Raises:
            ModelRetry: the model must answer again; the message says why.
        """
        processor, data = self._schema.text_processor, answer
        if self.mode == "tool" and name in self._schema.toolset.processors:
            processor, data = self._schema.toolset.processors[name], json.dumps(answer)
        elif self.mode in ("native", "prompted"):
            processor, data = self._schema.processor, json.dumps(answer)
        try:
            value, state = processor.hook_validate(data, run_context=context)
            return await processor.hook_execute(value, state, run_context=context, wrap_validation_errors=False)
        except ToolRetryError as error:
            raise ModelRetry(str(error.tool_retry.content)) from error
        except ValidationError as error:
            raise ModelRetry(retry_text(error.errors(include_url=False, include_context=False))) from error

    def validators(self) -> Sequence[tuple[str, Callable[[Any, RunContext[Any]], Any]]]:
        """The output validators by their names: functions of (the object, the context), which may raise ModelRetry."""
        return [(each.function.__name__, each.validate) for each in self._validators]


def is_strict(tool: ToolDefinition) -> bool:
    """Whether pydantic-ai sends a tool to OpenAI in strict mode: where that is not declared, if its schema allows it."""
    if tool.strict is not None:
        return bool(tool.strict)
    transformer = OpenAIJsonSchemaTransformer(tool.parameters_json_schema, strict=None)
    transformer.walk()
    return bool(transformer.is_strict_compatible)


def retry_text(content: Any) -> str:
    """The text by which pydantic-ai tells a model to try again."""
    return str(RetryPromptPart(content=content, tool_name="tool").model_response())


def _titled(name: str, description: str | None, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**schema, "title": name, **({"description": description} if description else {})}
