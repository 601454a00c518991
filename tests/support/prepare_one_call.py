"""Prepare one call of an agent's tool without a worker, spans and guards."""

from __future__ import annotations

from typing import Any

from mulligan import Agent, ToolCall, ToolCallError, tool
from mulligan.activities.answers import feedback
from mulligan.activities.answers.feedback import Target
from mulligan.activities.answers.parsed_arguments import ParsedArguments
from mulligan.activities.answers.prepare_call import ValidArguments, prepare
from mulligan.activities.tool_running.tool_runtime import ToolRuntime
from mulligan.fixer import AskModel, Fixer, InvalidToolInput

FIXER_LIMIT = 10.0
RUNTIME = ToolRuntime()


@tool
def say(text: str) -> str:
    """Say."""
    return text


@tool
def count(numbers: list[int]) -> int:
    """Count."""
    return len(numbers)


async def look(name: str, raw: str, agent: Agent) -> ValidArguments | ToolCallError:
    """The outcome of preparing a call: the prepared call, or the error."""
    try:
        return await prepare_for(ToolCall(id="1", name=name, arguments=raw), agent, RUNTIME)
    except ToolCallError as error:
        return error


async def prepare_for(call: ToolCall, agent: Agent, runtime: ToolRuntime) -> ValidArguments:
    """Prepare a call of one of the agent's tools.

    Raises:
        ToolCallError: there is no such tool, or its arguments are not what it takes and nobody could mend them.
    """
    tool = agent.tool(call.name)
    if tool is None:
        raise feedback.unknown_tool(call, [known.name for known in agent.listed_tools])

    async def ask(fixer: Fixer, invalid: InvalidToolInput) -> Any:
        assert not isinstance(fixer, AskModel)
        try:
            return await runtime.ask(fixer, (invalid,), limit=FIXER_LIMIT)
        except Exception:
            return None

    fixers = [("fix", tool.fix), ("repair", agent.repair)]
    parsed = ParsedArguments.of(call.arguments)
    return await prepare(call, parsed, Target(tool.name, tool.arguments), fixers, ask)
