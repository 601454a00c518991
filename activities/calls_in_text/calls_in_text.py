"""Calls in the text of answers: how a model is told to write them, and how they are read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from mulligan.activities.answers.feedback import Target
from mulligan.activities.answers.parsed_arguments import parse_arguments
from mulligan.activities.answers.prepare_call import prepare
from mulligan.activities.answers.without_thoughts import without_thoughts
from mulligan.activities.calls_in_text.find_calls import find_calls
from mulligan.activities.tool_running.find_tool import RunTools
from mulligan.policy import MISTAKES
from mulligan.values import ToolCall
from mulligan.wire.agent_facts import ToolDefinition


def describe(tools: Sequence[ToolDefinition]) -> str:
    """The part of the instructions that describes the tools, for a model whose requests contain no `tools`."""
    if not tools:
        return ""
    listed = "\n".join(
        f"- `{tool.name}`: {tool.description.strip() or 'no description'}\n"
        f"  arguments: {json.dumps(tool.parameters, ensure_ascii=False, separators=(',', ':'))}"
        for tool in tools
    )
    return (
        "# Tools\n\nYou can call tools. To call one, write one JSON object in a json code fence, with the tool's name and "
        f"its arguments:\n\n{as_text('NAME', '{...}')}\n\n"
        "For several calls at once, write a JSON list of such objects in one fence. Then stop: write nothing after the "
        "fence and never make up a result; it is sent to you in the next message. When you need no tool, answer in plain "
        f"text, without such a fence.\n\nThe tools, each with the JSON schema of its arguments:\n{listed}"
    )


def as_text(call_name: str, arguments: str) -> str:
    """A call as text, in the form that `describe` asks for. `find_calls` can read it again. `arguments` is a JSON object."""
    return f'```json\n{{"name": {json.dumps(call_name, ensure_ascii=False)}, "arguments": {arguments}}}\n```'


async def read_calls(text: str, tools: RunTools) -> tuple[str, list[ToolCall]]:
    """The text without the calls in it, and those calls. JSON that is valid as the output is the output, and no call."""
    # A text of a megabyte takes seconds to read: not on the worker's event loop.
    rest, calls = await asyncio.to_thread(find_calls, text, tools.names)
    declared = tools.agent.declared_output
    if not calls or not declared or tools.output_by != "provider" or any(call.name in tools.names for call in calls):
        return rest, calls
    said = (await asyncio.to_thread(without_thoughts, text)).strip()
    output = ToolCall(id="", name=declared.whole.name, arguments=said)
    try:
        await prepare(output, await parse_arguments(said), Target(output.name, declared.whole, is_output=True))
    except MISTAKES:
        return rest, calls
    return text, []
