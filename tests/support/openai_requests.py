"""Raw requests to the scripted OpenAI server and builders of their parts, for the tests of its rules."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from tests.support.openai_server import OpenAIServer

CHAT, RESPONSES = "/chat/completions", "/responses"
USER = {"role": "user", "content": "Where is order 7?"}
OBJECT = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": False}
ROOTED = {  # a strict schema that refers to itself
    **OBJECT,
    "properties": {"q": {"$ref": "#/$defs/Node"}},
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
            "required": ["next"],
            "additionalProperties": False,
        }
    },
}


async def post(server: OpenAIServer, path: str, body: object, key: str = "Bearer test") -> tuple[int, dict[str, Any]]:
    """Send bytes unchanged, or a value as JSON; return the status and the JSON of the response."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": key}
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.base_url + path, data=data, headers=headers) as reply,
    ):
        return reply.status, await reply.json()


async def expect_refusal(server: OpenAIServer, path: str, body: object, told: str) -> None:
    """Assert that the request is refused with OpenAI's error JSON and this text, and that the server records it."""
    status, reply = await post(server, path, body)
    assert told in reply["error"]["message"]
    assert set(reply["error"]) == {"message", "type", "param", "code"}
    assert reply["error"]["type"] == "invalid_request_error"
    assert status in (400, 404)
    assert len(server.refusals) == 1


def chat(*messages: object, **more: object) -> dict[str, object]:
    """A chat request: a user message followed by these messages."""
    return {"model": "m", "messages": [USER, *messages], **more}


def assistant_with_calls(*ids: str, **more: object) -> dict[str, Any]:
    """An assistant message with calls."""
    function = {"name": "f", "arguments": "{}", **more}
    return {"role": "assistant", "tool_calls": [{"id": i, "type": "function", "function": function} for i in ids]}


def result(call_id: str, content: object = "ok") -> dict[str, object]:
    """A tool message."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def function(name: object = "f", parameters: object = OBJECT, **more: object) -> dict[str, object]:
    """A tool as Chat Completions declares it."""
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def tools(*declared: object, **more: object) -> dict[str, object]:
    """A chat request with tools."""
    return chat(tools=list(declared), **more)


def schema(more: dict[str, object], strict: bool = False) -> dict[str, object]:
    """A chat request with a tool whose schema has this at its root."""
    return tools(function(parameters={**OBJECT, **more}, strict=strict))


def with_parameter(inner: object, strict: bool = False) -> dict[str, object]:
    """A chat request with a tool whose one parameter has this schema."""
    return schema({"properties": {"q": inner}}, strict)


def answer(**more: object) -> dict[str, object]:
    """A chat request for a structured answer."""
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": OBJECT, **more}})


def responses(*items: object, **more: object) -> dict[str, object]:
    """A request of the Responses API: a user message followed by these items."""
    return {"model": "m", "store": False, "input": [USER, *items], **more}


def call(call_id: object = "a", **more: object) -> dict[str, object]:
    """A function_call item."""
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **more}


def output(call_id: object = "a", **more: object) -> dict[str, object]:
    """A function_call_output item."""
    return {"type": "function_call_output", "call_id": call_id, "output": "ok", **more}


def reasoning_item(**more: object) -> dict[str, object]:
    """A reasoning item."""
    return {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA", **more}


def assistant_item(*parts: object, **more: object) -> dict[str, object]:
    """An assistant's message item in parts."""
    return {"type": "message", "role": "assistant", "content": list(parts), **more}
