"""Tools that a model finds on demand, in the forms of APIs that can defer tools: every request has all of them, marked, and
what a search has found is part of its result. So a find changes nothing of what was sent before, and the prompt cache keeps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mulligan.activities.models._json_fields import to_json
from mulligan.activities.models._legal_calls import legal_id, legal_object
from mulligan.activities.models.protocol import Request, ToolsOnDemand
from mulligan.tool import FIND_TOOLS
from mulligan.values import Message, ToolMessage
from mulligan.wire.agent_facts import ToolDefinition

SEARCH_CALL = "tool_search_call"
"""The type of OpenAI's item for a call that searches for tools."""


def deferred_tools(
    tools: Sequence[Mapping[str, Any]], unseen: ToolsOnDemand, write: Callable[[ToolDefinition], dict[str, Any]]
) -> list[dict[str, Any]]:
    """The tools of a request with those on demand deferred, in their own order, after the others.

    A tool that counts as found although no search in the conversation has found it (a compaction has removed the search, or
    there was none) is not deferred.

    Args:
        tools: The tools as the API wants them, without those that were not found.
        unseen: The tools on demand.
        write: Writes a tool as the API wants it.
    """
    loaded = {name for names in unseen.finds.values() for name in names}
    names = {tool.name for tool in unseen.tools}
    plain = [dict(tool) for tool in tools if tool.get("name") not in names or tool.get("name") not in loaded]
    at_once = {tool.get("name") for tool in plain}
    deferred = [{**write(tool), "defer_loading": True} for tool in unseen.tools if tool.name not in at_once]
    return [*plain, *deferred]


def with_references(request: Request, encode: Callable[[Message], list[Any]]) -> Sequence[Any]:
    """Anthropic's items of a conversation, with references to tools as the results of searches.

    Args:
        request: The request.
        encode: The provider's function that has encoded its messages.
    """
    finds = request.unseen.finds if request.unseen else {}
    replaced: dict[Any, str] = {}
    for message in request.messages:
        names = finds.get(message.call_id) if isinstance(message, ToolMessage) else None
        if names:
            [item] = encode(message)
            turn = json.loads(item)
            turn["content"][0]["content"] = [{"type": "tool_reference", "tool_name": name} for name in names]
            replaced[item] = to_json(turn)
    return [replaced.get(item, item) for item in request.items]


def with_searches(
    items: Sequence[str], unseen: ToolsOnDemand, write: Callable[[ToolDefinition], dict[str, Any]]
) -> list[str]:
    """OpenAI's items of a conversation, with calls of `find_tools` as searches for tools, whose results have the tools.

    Such a result has no place for a text: that of a search which has found nothing follows the step's results as a message.

    Args:
        items: The items, as JSON.
        unseen: The tools on demand.
        write: Writes a tool as the API wants it.
    """
    tools = {tool.name: {**write(tool), "defer_loading": True} for tool in unseen.tools}
    finds = {legal_id(call_id): names for call_id, names in unseen.finds.items()}
    searches: set[str] = set()
    written: list[str] = []
    texts: list[str] = []
    for text in items:
        item = json.loads(text) if text.startswith('{"type":"function_call') else {}
        if item.get("type") != "function_call_output":
            written += texts
            texts = []
        call_id = item.get("call_id", "")
        search = {"call_id": call_id, "execution": "client", "status": "completed"}
        if item.get("type") == "function_call" and item.get("name") == FIND_TOOLS:
            searches.add(call_id)
            search = {"type": SEARCH_CALL, **search, "arguments": legal_object(item["arguments"])}
            written.append(to_json(search))
        elif item.get("type") == "function_call_output" and call_id in searches:
            found = [tools[name] for name in finds.get(call_id, ())]
            written.append(to_json({"type": "tool_search_output", **search, "tools": found}))
            if not found:
                texts.append(_message_of(item["output"]))
        else:
            written.append(text)
    return [*written, *texts]


def _message_of(output: Any) -> str:
    text = output if isinstance(output, str) else to_json(output)
    content = [{"type": "input_text", "text": f"The result of `{FIND_TOOLS}`: {text}"}]
    return to_json({"type": "message", "role": "user", "content": content})


def search_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI's own tool for searches that the client carries out, in place of the function `find_tools`; others stay.

    Args:
        tool: A tool of a request.
    """
    if tool.get("name") != FIND_TOOLS:
        return dict(tool)
    fields = {"description": tool["description"], "parameters": tool["parameters"]}
    return {"type": "tool_search", "execution": "client", **fields}
