"""Content on spans: the form of OpenTelemetry's conventions for GenAI, 1.41, and JSON within the length of an attribute."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mulligan import AssistantMessage, ToolCall, ToolMessage, UserMessage
from mulligan.content import Image
from mulligan.observe.captured_messages import input_messages, output_messages, system_instructions, tool_definitions
from mulligan.observe.spans import MAX_TEXT_CHARS
from mulligan.values import Message

PARTS: dict[str, list[str]] = {
    "text": ["content"], "tool_call": ["name"], "tool_call_response": ["response"], "uri": ["modality", "uri"],
    "file": ["modality", "file_id"],
}  # fmt: skip
"""The fields that the conventions require of each type of part."""
PART = {"oneOf": [{"required": fields, "properties": {"type": {"const": kind}}} for kind, fields in PARTS.items()]}
MESSAGES: dict[str, Any] = {
    "type": "array",
    "items": {"required": ["role", "parts"], "properties": {"parts": {"type": "array", "items": PART}}},
}
REASONS = ["stop", "length", "content_filter", "tool_call", "error"]
CALL = ToolCall(id="c1", name="now", arguments='{"city": "Oslo"}')
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
CONVERSATION: list[Message] = [
    UserMessage.of([Image(url="https://a.example/a.png"), Image.from_bytes(PNG)]),
    UserMessage(role="user", text="Ab."),
    AssistantMessage(role="assistant", text="I look.", tool_calls=[CALL]),
    ToolMessage(role="tool", call_id="c1", name="now", text="12:00"),
]


def check(written: str, schema: dict[str, Any]) -> Any:
    assert len(written) <= MAX_TEXT_CHARS
    value = json.loads(written)
    Draft202012Validator(schema).validate(value)
    return value


def test_each_message_has_its_parts() -> None:
    media, text, answer, result = check(input_messages(CONVERSATION), MESSAGES)
    assert [each["type"] for each in media["parts"]] == ["uri", "file"]
    assert media["parts"][1]["file_id"].startswith("sha256:")
    assert text == {"role": "user", "parts": [{"type": "text", "content": "Ab."}]}
    assert answer["parts"][1] == {"type": "tool_call", "id": "c1", "name": "now", "arguments": {"city": "Oslo"}}
    assert result == {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "12:00"}]}


def test_a_call_that_is_no_json_is_the_text_that_the_model_wrote() -> None:
    answer = AssistantMessage(role="assistant", tool_calls=[CALL.model_copy(update={"arguments": "{now"})])
    [message] = check(output_messages(answer, "tool_calls"), MESSAGES)
    assert message["parts"][0]["arguments"] == "{now"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("stop", "stop"), ("tool_calls", "tool_call"), ("length", "length"), ("refusal", "content_filter")],
)
def test_an_answer_says_why_it_ended(ours: str, theirs: str) -> None:
    [message] = check(output_messages(AssistantMessage(role="assistant", text="Ab."), ours), MESSAGES)
    assert message["finish_reason"] == theirs in REASONS


def test_a_long_conversation_stays_json_and_keeps_its_newest_messages() -> None:
    long = [UserMessage(role="user", text=f"{number} " + 'x"\\' * 3_000) for number in range(900)]
    value = check(input_messages([*long, UserMessage(role="user", text="Last.")]), MESSAGES)
    assert value[-1]["parts"] == [{"type": "text", "content": "Last."}]
    left_out = 900 + 1 - (len(value) - 1)
    assert value[0]["parts"][0]["content"] == f"[{left_out:,} messages before these are left out.]"
    [one] = check(input_messages([UserMessage(role="user", text="x" * 10**5)]), MESSAGES)
    assert "more characters" in one["parts"][0]["content"]


def test_instructions_and_tools_are_those_of_the_conventions() -> None:
    assert json.loads(system_instructions("Be kind.")) == [{"type": "text", "content": "Be kind."}]
    assert json.loads(system_instructions("")) == []
    assert len(json.loads(system_instructions("x" * 10**5))) == 1
    tool = {"name": "now", "description": "The time.", "parameters": {"type": "object"}}
    assert json.loads(tool_definitions([tool])) == [{"type": "function", **tool}]


@pytest.mark.parametrize("count", [10, 60, 3_000])
def test_many_tools_have_their_names_first(count: int) -> None:
    parameters = {"type": "object", "properties": {"a" * 50: {"type": "string", "description": "b" * 900}}}
    tools = [{"name": f"tool_{n}", "description": "c" * 300, "parameters": parameters} for n in range(count)]
    value = check(tool_definitions(tools), {"type": "array", "items": {"required": ["type", "name"]}})
    assert len(value) == count or count == 3_000
    assert ("description" in value[0]) == (count == 10)
