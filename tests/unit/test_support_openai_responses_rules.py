"""Requests that the scripted OpenAI server refuses at /v1/responses, one row each, and those that it accepts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.openai_requests import (
    OBJECT,
    RESPONSES,
    USER,
    assistant_item,
    call,
    expect_refusal,
    function,
    output,
    post,
    reasoning_item,
    responses,
)
from tests.support.openai_server import OpenAIServer, Reasoning, Turn

TEXT = {"type": "output_text", "text": "Hm.", "annotations": []}
TOOL = {"type": "function", "name": "f", "parameters": OBJECT, "strict": True}


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer() as running:
        running.script("m", [Turn("first"), Turn("second"), Turn("third")])
        yield running


RESPONSES_REFUSALS: dict[str, tuple[object, str]] = {
    "no model": ({"input": "hi", "store": False}, "you must provide a model parameter"),
    "no input": ({"model": "m", "store": False}, "Missing required parameter: 'input'"),
    "empty input": ({"model": "m", "store": False, "input": []}, "Invalid 'input': empty array"),
    "empty text": ({"model": "m", "store": False, "input": ""}, "Invalid 'input': empty string"),
    "input an object": ({"model": "m", "store": False, "input": USER}, "Invalid type for 'input'"),
    "stored": (responses(store=True), "Invalid 'store'"),
    "stored by default": ({"model": "m", "input": "hi"}, "Invalid 'store'"),
    "previous response": (responses(previous_response_id="resp_1"), "'previous_response_id' cannot be used"),
    "conversation": (responses(conversation="conv_1"), "'conversation' cannot be used"),
    "unknown field": (responses(messages=[]), "Unknown parameter: 'messages'"),
    "unknown include": (responses(include=["all"]), "Invalid value: 'all'"),
    "unknown item": (responses({"type": "thought"}), "Invalid value: 'thought'"),
    "item reference": (responses({"type": "item_reference", "id": "rs_1"}), "Invalid value: 'item_reference'"),
    "role tool": (responses({"role": "tool", "content": ""}), "Invalid value: 'tool'"),
    "message with calls": (
        responses({**assistant_item(TEXT), "tool_calls": []}),
        "Unknown parameter: 'input[1].tool_calls'",
    ),
    "user content null": (responses({"role": "user", "content": None}), "Invalid type for 'input[1].content'"),
    "user content without parts": (responses({"role": "user", "content": []}), "Invalid 'input[1].content': empty"),
    "user parts of an assistant": (responses({"role": "user", "content": [TEXT]}), "Invalid value: 'output_text'"),
    "assistant parts of a user": (
        responses(assistant_item({"type": "input_text", "text": ""})),
        "Invalid value: 'input_text'",
    ),
    "assistant with an id but no status": (
        responses(assistant_item(TEXT, id="msg_1")),
        "Missing required parameter: 'input[1]",
    ),
    "assistant with a foreign id": (
        responses(assistant_item(TEXT, id="rs_1", status="completed")),
        "Expected an ID that begins with 'msg'",
    ),
    "reasoning with its status": (
        responses(reasoning_item(status="completed"), assistant_item(TEXT)),
        "Unknown parameter: 'input[1].status'",
    ),
    "reasoning with content null": (
        responses(reasoning_item(content=None), assistant_item(TEXT)),
        "Invalid type for 'input[1].content'",
    ),
    "reasoning without its summary": (
        responses({"type": "reasoning", "id": "rs_1", "encrypted_content": "g"}, assistant_item(TEXT)),
        "Missing required parameter: 'input[1].summary'",
    ),
    "reasoning not encrypted": (
        responses(reasoning_item(encrypted_content=None), assistant_item(TEXT)),
        "Items are not persisted",
    ),
    "reasoning with a foreign id": (
        responses(reasoning_item(id="x_1"), assistant_item(TEXT)),
        "Expected an ID that begins with 'rs'",
    ),
    "reasoning at the end": (responses(reasoning_item()), "without its required following item"),
    "reasoning before a user": (responses(reasoning_item(), USER), "without its required following item"),
    "reasoning twice": (
        responses(reasoning_item(), assistant_item(TEXT), USER, reasoning_item(), assistant_item(TEXT)),
        "Duplicate item found",
    ),
    "call without output": (responses(call()), "No tool output found for function call a"),
    "output without call": (responses(output()), "No tool call found for function call output with call_id a"),
    "output before call": (responses(output(), call()), "No tool call found for function call output"),
    "output twice": (responses(call(), output(), output()), "Duplicate tool output found for function call a"),
    "call id twice": (responses(call(), output(), call(), output()), "'a' is used twice"),
    "call id null": (responses(call(), output(None)), "Missing required parameter: 'input[2].call_id'"),
    "call id missing": (responses({**call(None)}, output()), "Invalid type for 'input[1].call_id'"),
    "long call id": (responses(call("a" * 65), output("a" * 65)), "maximum length 64"),
    "illegal call id": (responses(call("a b"), output("a b")), "Invalid 'input[1].call_id'"),
    "call id in place of an id": (responses(call(id="call_1"), output()), "Expected an ID that begins with 'fc'"),
    "null where no null is": (responses(call(namespace=None), output()), "Invalid type for 'input[1].namespace'"),
    "field of the SDK's own": (responses(call(parsed_arguments={}), output()), "Unknown parameter: 'input[1].parsed"),
    "illegal echoed name": (responses(call(name="a.b"), output()), "Invalid 'input[1].name'"),
    "arguments broken": (responses(call(arguments="{"), output()), "expected the text of a JSON object"),
    "output null": (responses(call(), output(output=None)), "Invalid type for 'input[2].output'"),
    "output an object": (responses(call(), output(output={})), "Invalid type for 'input[2].output'"),
    "output with an error": (responses(call(), output(error=None)), "Unknown parameter: 'input[2].error'"),
    "tool of the other endpoint": (responses(tools=[function()]), "Unknown parameter: 'tools[0].function'"),
    "tool without strict": (
        responses(tools=[{"type": "function", "name": "f", "parameters": OBJECT}]),
        "Missing required parameter: 'tools[0].strict'",
    ),
    "tool twice": (responses(tools=[TOOL, TOOL]), "the tool 'f' is declared twice"),
    "strict tool without a schema": (responses(tools=[{**TOOL, "parameters": None}]), "strict mode needs one"),
    "strict and open": (responses(tools=[{**TOOL, "parameters": {"type": "object"}}]), "'additionalProperties' is req"),
    "undeclared choice": (
        responses(tools=[TOOL], tool_choice={"type": "function", "name": "g"}),
        "Tool choice 'g' not found",
    ),
    "undeclared choice among several": (
        responses(tools=[TOOL], tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"name": "g"}]}),
        "Tool choice 'g' not found",
    ),
    "a choice required of none": (responses(tool_choice="required"), "must be specified with 'tools'"),
    "answer of the other endpoint": (
        responses(text={"format": {"type": "json_schema", "json_schema": {"name": "a", "schema": OBJECT}}}),
        "Unknown parameter: 'text.format.json_schema'",
    ),
    "answer strict and open": (
        responses(text={"format": {"type": "json_schema", "name": "a", "strict": True, "schema": {"type": "object"}}}),
        "'additionalProperties' is required",
    ),
    "JSON that nobody spoke of": (responses(text={"format": {"type": "json_object"}}), "must contain the word 'json'"),
    "too few tokens": (responses(max_output_tokens=15), "Expected a value >= 16"),
    "unknown effort": (responses(reasoning={"effort": "huge"}), "Invalid value: 'huge'"),
}


@pytest.mark.parametrize(("body", "told"), RESPONSES_REFUSALS.values(), ids=RESPONSES_REFUSALS.keys())
async def test_the_scripted_server_refuses_invalid_responses_requests(server: OpenAIServer, body: object, told: str):
    await expect_refusal(server, RESPONSES, body, told)


async def test_encrypted_reasoning_must_be_requested(server: OpenAIServer):
    server.script("m", [Turn("Hm.", reasoning=[Reasoning()])])
    await expect_refusal(server, RESPONSES, responses(), "'reasoning.encrypted_content' must be asked for")


# rules must not refuse too much either
RESPONSES_TAKEN: dict[str, object] = {
    "text": responses(instructions="Be kind.", tools=[], parallel_tool_calls=True),
    "parts": responses({"role": "user", "content": [{"type": "input_text", "text": "a"}]}),
    "reasoning and calls": responses(
        reasoning_item(content=[{"type": "reasoning_text", "text": "t"}]), call(id="fc_1"), output(), tools=[TOOL]
    ),
    "two calls": responses(call("a"), call("b", status="completed"), output("b"), output("a")),
    "open tool": responses(tools=[{**TOOL, "strict": False, "parameters": {"type": "object"}}]),
    "said": responses(assistant_item(TEXT, id="msg_1", status="completed"), USER),
    "said without an id": responses(assistant_item(TEXT), assistant_item({"type": "refusal", "refusal": "no"})),
    "said in short": responses({"role": "assistant", "content": "Hm."}),
    "answer": responses(text={"format": {"type": "json_schema", "name": "a", "strict": True, "schema": OBJECT}}),
    "settings": responses(reasoning={"effort": "low"}, include=["reasoning.encrypted_content"], max_output_tokens=16),
}


@pytest.mark.parametrize("body", RESPONSES_TAKEN.values(), ids=RESPONSES_TAKEN.keys())
async def test_the_scripted_server_accepts_valid_responses_requests(server: OpenAIServer, body: object):
    status, reply = await post(server, RESPONSES, body)
    assert (status, server.refusals) == (200, []), reply
