"""The rules of POST /v1/responses for a request; in addition `store` must be false."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import Any, Literal, Required

import typing_extensions as te
from openai.types.responses import ResponseInputItemParam, ResponseOutputItem
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from openai.types.responses.response_function_tool_call_param import ResponseFunctionToolCallParam
from openai.types.responses.response_input_item_param import FunctionCallOutput, Message, ToolSearchCall
from openai.types.responses.response_output_message_param import ResponseOutputMessageParam
from openai.types.responses.response_output_refusal_param import ResponseOutputRefusalParam
from openai.types.responses.response_output_text_param import ResponseOutputTextParam
from openai.types.responses.response_reasoning_item_param import Content, Summary
from openai.types.responses.response_tool_search_output_item_param_param import ResponseToolSearchOutputItemParamParam
from typing_extensions import TypedDict

from tests.support.openai_shapes import Refusal, check_shape, missing
from tests.support.sdk_examples import members
from tests.support.zoo import openai_rules as rules

RANGES: dict[str, tuple[float, float | None]] = {
    "temperature": (0, 2), "top_p": (0, 1), "max_output_tokens": (16, None), "max_tool_calls": (1, None),
    "top_logprobs": (0, 20),
}  # fmt: skip
LONGEST_ID = 64
ENCRYPTED = "reasoning.encrypted_content"


class ReasoningItem(TypedDict, total=False):
    """A reasoning item as input. The package's type has `status` too, for which the service returns an error 400
    (BerriAI/litellm#13420, 1jehuang/jcode#1028: "Unknown parameter: 'input[3].status'.").
    """

    id: Required[str]
    type: Required[Literal["reasoning"]]
    summary: Required[Iterable[Summary]]
    content: Iterable[Content]
    encrypted_content: str | None


class InputMessage(TypedDict, total=False):
    """A short message; its long form (content in parts) is the package's `Message`."""

    content: Required[str]
    role: Required[Literal["user", "system", "developer"]]
    type: Literal["message"]


class AssistantMessage(TypedDict, total=False):
    """An assistant message without its id. Its parts are output parts, not input parts."""

    content: Required[str | Iterable[ResponseOutputTextParam | ResponseOutputRefusalParam]]
    role: Required[Literal["assistant"]]
    type: Literal["message"]
    phase: Literal["commentary", "final_answer"] | None


InputItem = (
    ReasoningItem
    | ResponseFunctionToolCallParam
    | FunctionCallOutput
    | InputMessage
    | Message
    | AssistantMessage
    | ToolSearchCall
    | ResponseToolSearchOutputItemParamParam
)

OWN_ITEMS = ("reasoning", "function_call", "function_call_output")
ITEM_TYPES = {
    typing.get_args(te.get_type_hints(each)["type"])[0]
    for each in members(ResponseInputItemParam)
    if "type" in te.get_type_hints(each)
} | {typing.get_args(each.model_fields["type"].annotation)[0] for each in members(ResponseOutputItem)}
"""The types of items that a request or an answer may have."""
CLIENT_CALLS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "mcp_approval_request": "mcp_approval_response",
    "tool_search_call": "tool_search_output",
}
"""The calls that need an output of the client, or the server's own."""


class ResponsesRequest(ResponseCreateParamsBase, total=False):
    """The package has two types that differ in this field only."""

    stream: bool | None


def check_responses(body: dict[str, Any]) -> None:
    """Refuse a request that OpenAI would refuse, and any that stores the conversation at OpenAI."""
    rules.check_model(body)
    # the items are checked below, by more specific types
    check_shape({**body, "input": ""}, ResponsesRequest)
    if "input" not in body:
        raise missing("input")
    check_stateless(body)
    rules.check_numbers(body, RANGES)
    rules.check_labels(body)
    check_input(body["input"])
    check_tools(body)
    answer = (body.get("text") or {}).get("format")
    if answer is not None and answer["type"] == "json_schema":
        rules.check_answer_format(answer, "text.format")
    elif answer is not None and answer["type"] == "json_object":
        rules.check_says_json(body["input"], "input")


def check_stateless(body: dict[str, Any]) -> None:
    """Refuse fields that rely on a conversation stored at OpenAI: Mulligan's is in Temporal's history."""
    if body.get("background"):
        if body.get("store") is not True:
            raise Refusal("Background mode requires 'store' to be true.", "store", "invalid_value")
    elif body.get("store") is not False:
        raise Refusal("Invalid 'store': this server demands false.", "store", "invalid_value")
    for name in ("previous_response_id", "conversation", "prompt"):
        if body.get(name):
            raise Refusal(f"'{name}' cannot be used when 'store' is false.", name, "unsupported_parameter")


def check_input(items: object) -> None:
    """Refuse items that do not match each other."""
    if isinstance(items, str):
        if not items:
            raise Refusal("Invalid 'input': empty string.", "input", "empty_string")
        return
    check_shape(items, list[dict[str, object]], "input")
    assert isinstance(items, list)
    rules.check_array(items, "input")
    for index, item in enumerate(items):
        check_item(item, f"input[{index}]")
    check_pairs(items)
    check_reasoning_is_followed(items)
    seen: set[str] = set()
    for item_id in (item["id"] for item in items if item.get("id") is not None):
        if item_id in seen:
            raise Refusal(f"Duplicate item found with id {item_id}. Remove duplicate items from your input.", "input")
        seen.add(item_id)


def check_item(item: dict[str, Any], param: str) -> None:
    """Refuse an item that is not one of the input items that Mulligan uses, or that has output fields."""
    is_message = item.get("type", "message") == "message"
    if not is_message and item.get("type") not in OWN_ITEMS:
        check_hosted_item(item, param)
        return
    if is_message and item.get("role") == "assistant" and "id" in item:
        check_shape(item, ResponseOutputMessageParam, param)
    else:
        check_shape(item, InputItem, param)
    if is_message:
        if isinstance(item["content"], list):
            rules.check_array(item["content"], f"{param}.content")
            check_parts(item["content"], f"{param}.content")
        check_id(item, "msg", param)
    elif item["type"] == "reasoning":
        check_id(item, "rs", param)
        if not item.get("encrypted_content"):
            told = "Items are not persisted when `store` is set to false."
            raise Refusal(f"Item with id '{item['id']}' not found. {told}", "input", None, 404)
    else:
        if item.get("call_id") is None:
            raise missing(f"{param}.call_id")
        rules.check_text(item["call_id"], LONGEST_ID, f"{param}.call_id")
        check_id(item, "fc", param)
        if isinstance(item.get("output"), list):
            check_parts(item["output"], f"{param}.output")
        if item["type"] == "function_call":
            rules.check_text(item["name"], 64, f"{param}.name")
            rules.check_arguments(item["arguments"], f"{param}.arguments")


def check_hosted_item(item: dict[str, Any], param: str) -> None:
    """Refuse an item of a type that neither an input nor an output has. `future_…`: types that the package does not know.

    Answers are sent back as they came, so the fields of output items are accepted.
    """
    kind = str(item.get("type"))
    if kind not in ITEM_TYPES and not kind.startswith("future_"):
        raise Refusal(f"Invalid value: '{kind}'.", f"{param}.type", "invalid_value")


def check_parts(parts: list[dict[str, Any]], param: str) -> None:
    """Refuse images and files that cannot be read."""
    for index, part in enumerate(parts):
        if part["type"] == "input_image" and part.get("image_url") is not None:
            rules.check_image(part["image_url"], f"{param}[{index}].image_url")
        elif part["type"] == "input_file" and part.get("file_url") is None and part.get("file_id") is None:
            rules.check_file(part.get("file_data"), part.get("filename"), f"{param}[{index}].file_data")


def check_id(item: dict[str, Any], prefix: str, param: str) -> None:
    """Refuse an item id with the prefix of another kind. The `call_id` of a call is not checked here."""
    if item.get("id") is None:
        return
    rules.check_text(item["id"], LONGEST_ID, f"{param}.id")
    if not item["id"].startswith(prefix):
        message = f"Invalid '{param}.id': '{item['id']}'. Expected an ID that begins with '{prefix}'."
        raise Refusal(message, f"{param}.id", "invalid_value")


def check_pairs(items: list[dict[str, Any]]) -> None:
    """Refuse calls without exactly one later output, and outputs without an earlier call."""
    called: set[str] = set()
    answered: set[str] = set()
    outputs = {output: call for call, output in CLIENT_CALLS.items()}
    for index, item in enumerate(items):
        kind, call_id = str(item.get("type")), link_of(item)
        is_of_client = item.get("execution", "client") == "client"
        if kind in CLIENT_CALLS and is_of_client:
            if call_id in called:
                at = f"input[{index}].call_id"
                raise Refusal(f"Invalid '{at}': '{call_id}' is used twice.", at, "invalid_value")
            called.add(call_id)
        elif kind in outputs and is_of_client:
            if call_id not in called:
                raise Refusal(f"No tool call found for function call output with call_id {call_id}.", "input")
            if call_id in answered:
                raise Refusal(f"Duplicate tool output found for function call {call_id}.", "input")
            answered.add(call_id)
    for call_id in sorted(called - answered):
        raise Refusal(f"No tool output found for function call {call_id}.", "input")


def link_of(item: dict[str, Any]) -> str:
    """The id that a call and its output have in common."""
    fields = {
        "mcp_approval_request": "id",
        "mcp_approval_response": "approval_request_id",
        "local_shell_call_output": "id",
    }
    return str(item.get(fields.get(str(item.get("type")), "call_id")))


def check_reasoning_is_followed(items: list[dict[str, Any]]) -> None:
    """Refuse a reasoning item without a following item, as OpenAI does, for instance after a truncated answer."""
    for item, after in zip(items, [*items[1:], {}], strict=True):
        if item.get("type") == "reasoning" and not is_of_model(after):
            told = f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
            raise Refusal(told, "input")


def is_of_model(item: dict[str, Any]) -> bool:
    """Whether the model wrote this item."""
    is_hosted = item.get("type", "message") not in ("message", "function_call_output", "tool_search_output")
    return is_hosted or item.get("role") == "assistant"


def check_tools(body: dict[str, Any]) -> None:
    """Refuse invalid tool declarations, and a tool_choice without tools."""
    tools = body.get("tools") or []
    if tools:
        rules.check_array(tools, "tools", 128)
    deferred = [tool for tool in tools if tool.get("defer_loading")]
    if deferred and not any(tool["type"] == "tool_search" for tool in tools):
        raise Refusal("Deferred tools require the tool 'tool_search'.", "tools")
    names = rules.check_functions([(f"tools[{i}]", tool) for i, tool in enumerate(tools) if tool["type"] == "function"])
    choice = body.get("tool_choice")
    named = isinstance(choice, dict) and choice["type"] == "function"
    rules.check_choice(choice, choice["name"] if named else None, names)  # type: ignore[index]
    if isinstance(choice, dict) and choice["type"] == "allowed_tools":
        for tool in choice["tools"]:
            rules.check_choice(choice, tool.get("name", ""), names)
