"""The rules of POST /v1/chat/completions for a request."""

from __future__ import annotations

from typing import Any

from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from tests.support.openai_shapes import Refusal, check_shape
from tests.support.zoo import openai_rules as rules

# OpenAI's limit for a call id in Chat Completions; that of the Responses API is 64
LONGEST_ID = 40
RANGES: dict[str, tuple[float, float | None]] = {
    "temperature": (0, 2), "top_p": (0, 1), "frequency_penalty": (-2, 2), "presence_penalty": (-2, 2),
    "max_tokens": (1, None), "max_completion_tokens": (1, None), "top_logprobs": (0, 20), "n": (1, 1),
}  # fmt: skip


class ChatRequest(CompletionCreateParamsBase, total=False):
    """The package has two types that differ in this field only."""

    stream: bool | None


def check_chat(body: dict[str, Any], longest_id: int = LONGEST_ID) -> None:
    """Refuse a request that OpenAI would refuse."""
    rules.check_model(body)
    check_shape(body, ChatRequest)
    rules.check_numbers(body, RANGES)
    rules.check_labels(body)
    check_messages(body["messages"], longest_id)
    check_tools(body)
    if body.get("stream_options") is not None and not body.get("stream"):
        raise Refusal("The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options")
    answer = body.get("response_format")
    if answer is not None and answer["type"] == "json_schema":
        rules.check_answer_format(answer["json_schema"], "response_format.json_schema")
    elif answer is not None and answer["type"] == "json_object":
        rules.check_says_json(body["messages"], "messages")


def check_messages(messages: list[dict[str, Any]], longest_id: int) -> None:
    """Refuse a conversation in which calls and results do not match."""
    rules.check_array(messages, "messages")
    seen: set[str] = set()  # ids of the whole conversation
    open_ids: list[str] = []  # calls of the last assistant message that still have no result
    for index, message in enumerate(messages):
        param = f"messages[{index}]"
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                told = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                raise Refusal(f"Invalid parameter: {told}", f"{param}.role")
            open_ids.remove(message["tool_call_id"])
            check_content(message["content"], f"{param}.content")
            continue
        check_all_answered(open_ids, param)
        if message["role"] == "assistant":
            open_ids = check_assistant(message, param, seen, longest_id)
        else:
            check_content(message["content"], f"{param}.content")
    check_all_answered(open_ids, "messages")


def check_all_answered(open_ids: list[str], param: str) -> None:
    """Refuse a message before the results of the last calls."""
    if open_ids:
        told = (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each"
            f" 'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(open_ids)}"
        )
        raise Refusal(told, param)


def check_assistant(message: dict[str, Any], param: str, seen: set[str], longest_id: int) -> list[str]:
    """Refuse an assistant message without content, or with malformed calls; return the ids of the calls."""
    calls = message.get("tool_calls")
    if calls is not None:
        rules.check_array(calls, f"{param}.tool_calls", 128)
    if message.get("content") is None and calls is None:
        if message.get("refusal") is None and message.get("function_call") is None:
            told = "expected a string or an array, but got null instead"
            raise Refusal(f"Invalid value for 'content': {told}.", f"{param}.content", "invalid_type")
    elif message.get("content") is not None:
        check_content(message["content"], f"{param}.content")
    ids = []
    for index, call in enumerate(calls or []):
        at = f"{param}.tool_calls[{index}]"
        rules.check_text(call["id"], longest_id, f"{at}.id")
        if call["id"] in seen:
            raise Refusal(f"Invalid '{at}.id': '{call['id']}' is used twice.", f"{at}.id", "invalid_value")
        seen.add(call["id"])
        ids.append(call["id"])
        if call["type"] == "function":
            rules.check_text(call["function"]["name"], 64, f"{at}.function.name")
            rules.check_arguments(call["function"]["arguments"], f"{at}.function.arguments")
    return ids


def check_content(content: object, param: str) -> None:
    """Refuse an empty list of parts, and content that cannot be read; an empty string is accepted."""
    if not isinstance(content, list):
        return
    rules.check_array(content, param)
    for index, part in enumerate(content):
        at = f"{param}[{index}].{part['type']}"
        if part["type"] == "image_url":
            rules.check_image(part["image_url"]["url"], f"{at}.url")
        elif part["type"] == "file" and part["file"].get("file_id") is None:
            rules.check_file(part["file"].get("file_data"), part["file"].get("filename"), f"{at}.file_data")


def check_tools(body: dict[str, Any]) -> None:
    """Refuse invalid tool declarations, and a tool_choice without tools."""
    tools = body.get("tools")
    if tools is None:
        for name in ("tool_choice", "parallel_tool_calls"):
            if name in body and body[name] != "none":
                raise Refusal(f"'{name}' is only allowed when 'tools' are specified.", name)
        return
    rules.check_array(tools, "tools", 128)
    functions = [
        (f"tools[{i}].function", tool["function"]) for i, tool in enumerate(tools) if tool["type"] == "function"
    ]
    names = rules.check_functions(functions)
    choice = body.get("tool_choice")
    named = isinstance(choice, dict) and choice["type"] == "function"
    rules.check_choice(choice, choice["function"]["name"] if named else None, names)  # type: ignore[index]
    if isinstance(choice, dict) and choice["type"] == "allowed_tools":
        for tool in choice["allowed_tools"]["tools"]:
            function = tool.get("function")
            rules.check_choice(choice, function.get("name", "") if isinstance(function, dict) else "", names)
