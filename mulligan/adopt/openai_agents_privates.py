"""The parts of openai-agents that its documentation does not promise: all that adopting uses of them stands here."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from agents import Agent, FunctionTool, Handoff
from agents.models.openai_responses import Converter
from agents.tool import (
    maybe_invoke_function_tool_failure_error_function,
    resolve_function_tool_failure_error_function,
    set_function_tool_failure_error_function,
)

TRIED = ("0.21.0", "0.24.0")
"""The versions that the tests have run with. The first is the oldest that works with the `openai` that Mulligan needs."""


def raising(tool: FunctionTool) -> FunctionTool:
    """The tool without its failure function: its exceptions are raised."""
    return set_function_tool_failure_error_function(copy.copy(tool), None)


def tells_failures(tool: FunctionTool) -> bool:
    """Whether the tool has a failure function, so that a failure does not end the run."""
    return resolve_function_tool_failure_error_function(tool) is not None


async def failure_text(tool: FunctionTool, context: Any, error: Exception) -> str | None:
    """The text that the failure function has for the model; None without such a function."""
    text: str | None = await maybe_invoke_function_tool_failure_error_function(
        function_tool=tool, context=context, error=error
    )
    return text


def agent_of_tool(tool: FunctionTool) -> Agent[Any] | None:
    """The agent whose runs the calls of a tool are; None for a function."""
    agent: Agent[Any] | None = tool._agent_instance
    return agent


def target_of(handoff: Handoff[Any, Any]) -> Agent[Any] | None:
    """The agent of a handoff that was made by `handoff()`; None where a function of the user's chooses it."""
    reference = handoff._agent_ref
    target = reference() if reference is not None else None
    return target if isinstance(target, Agent) else None


def on_handoff_of(handoff: Handoff[Any, Any]) -> Callable[..., Any] | None:
    """The `on_handoff` of a handoff."""
    invoked: Any = handoff.on_invoke_handoff
    function = invoked.args[-1] if isinstance(invoked, partial) else invoked
    closed_over = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
    found: Callable[..., Any] | None = closed_over.get("on_handoff")
    return found


def hosted_tool(tool: Any) -> dict[str, Any]:
    """A tool that OpenAI runs, as the Responses API takes it."""
    converted = Converter.convert_tools([tool], []).tools[0]
    plain: dict[str, Any] = json.loads(json.dumps(converted, default=_as_dict))
    return {name: value for name, value in plain.items() if value is not None}


def _as_dict(value: Any) -> Any:
    return value.model_dump(exclude_none=True)
