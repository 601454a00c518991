"""Requests that the scripted OpenAI server refuses at /v1/chat/completions, one row each, and those that it accepts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.openai_requests import (
    CHAT,
    OBJECT,
    ROOTED,
    USER,
    answer,
    assistant_with_calls,
    chat,
    expect_refusal,
    function,
    post,
    result,
    schema,
    tools,
    with_parameter,
)
from tests.support.openai_server import OpenAIServer, Turn


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer() as running:
        running.script("m", [Turn("first"), Turn("second"), Turn("third")])
        yield running


CHAT_REFUSALS: dict[str, tuple[object, str]] = {
    "not UTF-8": (b'{"model": "\xff"}', "could not parse the JSON body"),
    "a surrogate in UTF-8": ('{"model": "\ud800"}'.encode("utf-8", "surrogatepass"), "could not parse"),
    "an escaped lone surrogate": (b'{"model": "\\ud800"}', "could not parse the JSON body"),
    "NaN": (b'{"model": "m", "messages": [], "temperature": NaN}', "could not parse the JSON body"),
    "no object": ([], "could not parse the JSON body"),
    "deep nesting": (b"[" * 100_000, "could not parse the JSON body"),
    "no model": ({"messages": [USER]}, "you must provide a model parameter"),
    "empty model": ({"model": "", "messages": [USER]}, "you must provide a model parameter"),
    "no messages": ({"model": "m"}, "Missing required parameter: 'messages'"),
    "empty messages": ({"model": "m", "messages": []}, "Invalid 'messages': empty array"),
    "messages null": ({"model": "m", "messages": None}, "Invalid type for 'messages'"),
    "unknown field": (chat(max_steps=3), "Unknown parameter: 'max_steps'"),
    "unknown field of a message": (chat({**USER, "error": None}), r"Unknown parameter: 'messages[1].error'"),
    "field of another role": (chat({**USER, "tool_call_id": "a"}), "Unknown parameter: 'messages[1].tool_call_id'"),
    "unknown field of a call": (
        chat(
            {**assistant_with_calls("a"), "tool_calls": [{**assistant_with_calls("a")["tool_calls"][0], "index": 0}]},
            result("a"),
        ),
        "Unknown parameter: 'messages[1].tool_calls[0].index'",
    ),
    "unknown role": (chat({"role": "critic", "content": "no"}), "Invalid value: 'critic'"),
    "no role": (chat({"content": "no"}), "Missing required parameter: 'messages[1].role'"),
    "user content null": (chat({"role": "user", "content": None}), "Invalid type for 'messages[1].content'"),
    "user content a number": (chat({"role": "user", "content": 7}), "Invalid type for 'messages[1].content'"),
    "user content without parts": (chat({"role": "user", "content": []}), "Invalid 'messages[1].content': empty"),
    "bad part": (chat({"role": "user", "content": [{"type": "output_text", "text": ""}]}), "Invalid value: 'output_t"),
    "system content null": (chat({"role": "system", "content": None}), "Invalid type for 'messages[1].content'"),
    "silent assistant": (chat({"role": "assistant", "content": None}), "Invalid value for 'content'"),
    "empty calls": (chat({"role": "assistant", "tool_calls": []}), "Invalid 'messages[1].tool_calls': empty array"),
    "calls null": (chat({"role": "assistant", "content": "a", "tool_calls": None}), "Invalid type for 'messages[1].to"),
    "no result": (chat(assistant_with_calls("a")), "did not have response messages: a"),
    "one result missing": (
        chat(assistant_with_calls("a", "b"), result("a"), USER),
        "did not have response messages: b",
    ),
    "result too late": (chat(assistant_with_calls("a"), USER, result("a")), "must be followed by tool messages"),
    "result without a call": (chat(result("a")), "must be a response to a preceeding message with 'tool_calls'"),
    "result of an older call": (
        chat(assistant_with_calls("a"), result("a"), USER, result("a")),
        "must be a response to a prec",
    ),
    "result twice": (
        chat(assistant_with_calls("a"), result("a"), result("a")),
        "must be a response to a preceeding message",
    ),
    "result null": (chat(assistant_with_calls("a"), result("a", None)), "Invalid type for 'messages[2].content'"),
    "result an object": (
        chat(assistant_with_calls("a"), result("a", {"x": 1})),
        "Invalid type for 'messages[2].content'",
    ),
    "id twice in a message": (chat(assistant_with_calls("a", "a"), result("a"), result("a")), "'a' is used twice"),
    "id twice in a conversation": (
        chat(assistant_with_calls("a"), result("a"), assistant_with_calls("a"), result("a")),
        "'a' is used twice",
    ),
    "empty id": (chat(assistant_with_calls(""), result("")), "Invalid 'messages[1].tool_calls[0].id': empty string"),
    "long id": (
        chat(assistant_with_calls("a" * 41), result("a" * 41)),
        "maximum length 40, but got a string with length 41",
    ),
    "illegal id": (
        chat(assistant_with_calls("a b"), result("a b")),
        "Invalid 'messages[1].tool_calls[0].id': string does not match",
    ),
    "illegal echoed name": (
        chat(assistant_with_calls("a", name="a.b"), result("a")),
        "'messages[1].tool_calls[0].function.name'",
    ),
    "long echoed name": (chat(assistant_with_calls("a", name="n" * 65), result("a")), "maximum length 64"),
    "arguments an object": (
        chat(assistant_with_calls("a", arguments={}), result("a")),
        "function.arguments': expected a string",
    ),
    "arguments broken": (
        chat(assistant_with_calls("a", arguments="{"), result("a")),
        "expected the text of a JSON object",
    ),
    "arguments empty": (
        chat(assistant_with_calls("a", arguments=""), result("a")),
        "expected the text of a JSON object",
    ),
    "arguments a list": (
        chat(assistant_with_calls("a", arguments="[]"), result("a")),
        "expected the text of a JSON object",
    ),
    "arguments with NaN": (
        chat(assistant_with_calls("a", arguments='{"a": NaN}'), result("a")),
        "expected the text of a JSON object",
    ),
    "no tools": (tools(), "Invalid 'tools': empty array"),
    "choice without tools": (chat(tool_choice="auto"), "'tool_choice' is only allowed when 'tools'"),
    "parallel without tools": (chat(parallel_tool_calls=True), "'parallel_tool_calls' is only allowed when 'tools'"),
    "tool twice": (tools(function(), function()), "the tool 'f' is declared twice"),
    "illegal tool name": (tools(function("a.b")), "Invalid 'tools[0].function.name'"),
    "long tool name": (tools(function("n" * 65)), "maximum length 64"),
    "unknown field of a tool": (tools(function(timeout=3)), "Unknown parameter: 'tools[0].function.timeout'"),
    "tool of the other endpoint": (tools({"type": "function", "name": "f"}), "Unknown parameter: 'tools[0].name'"),
    "undeclared choice": (
        tools(function(), tool_choice={"type": "function", "function": {"name": "g"}}),
        "Tool choice 'g' not found",
    ),
    "unknown choice": (tools(function(), tool_choice="any"), "Invalid value: 'any'"),
    "schema not of an object": (tools(function(parameters={"type": "string"})), "got 'type: \"string\"'"),
    "schema without a type": (tools(function(parameters={})), "got 'type: \"None\"'"),
    "schema a choice at the top": (schema({"anyOf": [OBJECT]}), "not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not'"),
    "schema with an unknown type": (with_parameter({"type": "text"}), "'text' is not valid under any"),
    "schema with a bad property": (with_parameter("string"), "'string' is not of type 'object', 'boolean'"),
    "schema with bad required": (schema({"required": "q"}), "'required' must be an array of unique strings"),
    "schema with an empty enum": (with_parameter({"enum": []}), "'enum' must be a non-empty array"),
    "schema with an empty choice": (with_parameter({"anyOf": []}), "'anyOf' must be a non-empty array"),
    "schema with a bad pattern": (with_parameter({"type": "string", "pattern": "("}), "is not a 'regex'"),
    "schema with a bad number": (with_parameter({"type": "integer", "minimum": "1"}), "'minimum' must be a number"),
    "schema with a bad count": (
        with_parameter({"type": "array", "items": {}, "maxItems": -1}),
        "'maxItems' must be a non-neg",
    ),
    "schema with a bad text": (with_parameter({"description": 7}), "'description' must be a string"),
    "schema array without items": (with_parameter({"type": "array"}), "array schema missing items"),
    "schema with a dangling reference": (
        with_parameter({"$ref": "#/$defs/none"}),
        "reference can only point to definitions",
    ),
    "schema with a reference elsewhere": (
        with_parameter({"$ref": "https://x.y/z"}),
        "reference can only point to definitions",
    ),
    "strict without required": (schema({"required": []}, True), "Missing 'q'"),
    "strict with an unknown required": (schema({"required": ["q", "r"]}, True), "Extra required key 'r'"),
    "strict and open": (schema({"additionalProperties": True}, True), "'additionalProperties' is required to be"),
    "strict and open inside": (
        with_parameter({"type": "object", "properties": {}}, True),
        "'additionalProperties' is requi",
    ),
    "strict with a default": (with_parameter({"type": "string", "default": ""}, True), "'default' is not permitted"),
    "strict with allOf": (with_parameter({"allOf": [{"type": "string"}]}, True), "'allOf' is not permitted"),
    "strict without a type": (with_parameter({"enum": ["a"]}, True), "schema must have a 'type' key"),
    "strict with an unknown format": (
        with_parameter({"type": "string", "format": "uri"}, True),
        "'uri' is not a valid format",
    ),
    "strict with words beside a reference": (
        schema({"properties": {"q": {"$ref": "#", "description": "d"}}}, True),
        "$ref cannot have keywords",
    ),
    "strict without a schema": (tools(function(strict=True, parameters=None)), "Invalid type for 'tools[0].function.p"),
    "answer without a schema": (
        chat(response_format={"type": "json_schema", "json_schema": {"name": "a"}}),
        "Missing required parameter: 'response_format.json_schema.schema'",
    ),
    "answer without a name": (
        chat(response_format={"type": "json_schema", "json_schema": {"schema": OBJECT}}),
        "Missing required parameter: 'response_format.json_schema.name'",
    ),
    "answer of the other endpoint": (
        chat(response_format={"type": "json_schema", "name": "a", "schema": OBJECT}),
        "Unknown parameter: 'response_format.name'",
    ),
    "answer with an illegal name": (answer(name="a[b]"), "Invalid 'response_format.json_schema.name'"),
    "answer not of an object": (answer(schema={"type": "array", "items": {}}), "got 'type: \"array\"'"),
    "answer strict and open": (answer(schema={**OBJECT, "additionalProperties": {}}, strict=True), "response_format"),
    "answer of an unknown kind": (chat(response_format={"type": "yaml"}), "Invalid value: 'yaml'"),
    "JSON that nobody spoke of": (chat(response_format={"type": "json_object"}), "must contain the word 'json'"),
    "temperature too high": (chat(temperature=2.5), "Expected a value <= 2"),
    "temperature a text": (chat(temperature="0.5"), "Invalid type for 'temperature'"),
    "no tokens": (chat(max_completion_tokens=0), "Expected a value >= 1"),
    "several choices": (chat(n=2), "Expected a value <= 1"),
    "stream options alone": (chat(stream_options={"include_usage": True}), "only allowed when 'stream' is enabled"),
    "metadata with a number": (chat(metadata={"a": 1}), "Invalid type for 'metadata.a'"),
    "metadata too long": (chat(metadata={"a": "x" * 513}), "maximum length 512"),
    "metadata too many": (chat(metadata={str(i): "" for i in range(17)}), "too many properties"),
    "long safety identifier": (chat(safety_identifier="x" * 129), "maximum length 128"),
    "after the script's end": (chat(*[{"role": "assistant", "content": "a"}] * 3), "has 3 turns, turn 4 was asked for"),
}


@pytest.mark.parametrize(("body", "told"), CHAT_REFUSALS.values(), ids=CHAT_REFUSALS.keys())
async def test_the_scripted_server_refuses_invalid_chat_requests(server: OpenAIServer, body: object, told: str):
    await expect_refusal(server, CHAT, body, told)


# rules must not refuse too much either
CHAT_TAKEN: dict[str, object] = {
    "chat": chat({"role": "system", "content": ""}, {"role": "user", "content": [{"type": "text", "text": "a"}]}),
    "calls": chat(
        assistant_with_calls("a", "b"), result("b"), result("a", [{"type": "text", "text": "x"}]), tools=[function()]
    ),
    "calls with null content": chat({**assistant_with_calls("a"), "content": None}, result("a")),
    "refusal": chat({"role": "assistant", "content": None, "refusal": "no"}),
    "open schema": with_parameter({"description": "anything", "default": None, "examples": ["x"]}),
    "recursive strict schema": tools(function(parameters=ROOTED, strict=True), tool_choice="required"),
    "tool without parameters": tools({"type": "function", "function": {"name": "f"}}),
    "settings": chat(temperature=0, seed=1, stop=["x"], user="u", metadata={"a": "b"}, stream=False),
    "answer": answer(strict=True),
    "JSON": chat({"role": "user", "content": "in JSON"}, response_format={"type": "json_object"}),
}


@pytest.mark.parametrize("body", CHAT_TAKEN.values(), ids=CHAT_TAKEN.keys())
async def test_the_scripted_server_accepts_valid_chat_requests(server: OpenAIServer, body: object):
    status, reply = await post(server, CHAT, body)
    assert (status, server.refusals) == (200, []), reply
