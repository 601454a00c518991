"""The rules of Anthropic's POST /v1/messages for a request.

The fields are those of the anthropic package's types, which are generated from the API. The other rules are those of its
documentation and of the errors that people have reported; it is stricter about turns of one role in a row, which it merges.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Container, Iterable, Mapping
from typing import Any

from anthropic.types import ContentBlock
from anthropic.types.beta import BetaContentBlock
from anthropic.types.message_create_params import MessageCreateParamsBase
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from tests.support.anthropic_api import signature_of
from tests.support.openai_shapes import Refusal, check_shape
from tests.support.sdk_examples import members

LEGAL_ID, LEGAL_NAME = re.compile(r"[a-zA-Z0-9_-]+"), re.compile(r"[a-zA-Z0-9_-]{1,128}")
LEGAL_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
MOST_BREAKPOINTS = 4
THINKING = ("thinking", "redacted_thinking")
BLOCKS = {typing.get_args(each.model_fields["type"].annotation)[0] for each in members(ContentBlock)}
BETA_BLOCKS = {typing.get_args(each.model_fields["type"].annotation)[0] for each in members(BetaContentBlock)} - BLOCKS
UNSUPPORTED = {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern"),
    *("maxItems", "uniqueItems", "minProperties", "maxProperties", "patternProperties", "not", "if", "prefixItems"),
}
"""Keywords that the schema of a structured answer may not have."""


class MessagesRequest(MessageCreateParamsBase, total=False):
    """The package has two types that differ in this field only. Newer models do not take the others."""

    stream: bool
    temperature: float
    top_p: float
    top_k: int


def check_messages_request(
    headers: Mapping[str, str], body: dict[str, Any], limits: Mapping[str, int], samplers: Container[str]
) -> None:
    """Refuse a request that Anthropic would refuse.

    `limits`: the largest `max_tokens` of models. `samplers`: the models that take settings of sampling.
    """
    if "anthropic-version" not in headers:
        raise Refusal("anthropic-version: header is required")
    check_shape({**body, "messages": [without_hosted(message) for message in body["messages"]]}, MessagesRequest)
    limit = limits.get(body["model"])
    if not 1 <= body["max_tokens"] <= (limit or body["max_tokens"]):
        text = "which is the maximum allowed number of output tokens for"
        raise Refusal(f"max_tokens: {body['max_tokens']} > {limit}, {text} {body['model']}", "max_tokens")
    for name in ("temperature", "top_p", "top_k"):
        if name in body and body["model"] not in samplers:
            raise Refusal(f"{name}: Extra inputs are not permitted", name)
    check_thinking_settings(body)
    names = check_tools(body)
    check_conversation(body["messages"], names)
    check_thinking_of_the_last_answer(body)
    check_breakpoints(body)
    answer = (body.get("output_config") or {}).get("format")
    if answer is not None:
        check_answer_schema(answer["schema"], answer["schema"].get("$defs", {}), ())


def without_hosted(message: dict[str, Any]) -> dict[str, Any]:
    """The message without blocks of its beta API, which are sent back as they came. `future_…`: types that nobody knows."""
    content = message.get("content")
    if not isinstance(content, list) or message.get("role") != "assistant":
        return message
    known = [each for each in content if isinstance(each, dict) and not is_beta(each)]
    return {**message, "content": [without_file_ids(each) for each in known]}


def without_file_ids(block: dict[str, Any]) -> dict[str, Any]:
    """The block without a field of its citations that the package's type of an answer has, and that of a request has not."""
    cited = block.get("citations")
    if not isinstance(cited, list):
        return block
    return {**block, "citations": [{n: v for n, v in each.items() if n != "file_id"} for each in cited]}


def is_beta(block: dict[str, Any]) -> bool:
    """Whether only the beta API has blocks of this type."""
    kind = str(block.get("type"))
    return kind in BETA_BLOCKS or kind.startswith("future_")


def check_thinking_settings(body: dict[str, Any]) -> None:
    """Refuse what does not go together with thinking."""
    thinking = body.get("thinking") or {}
    if thinking.get("type") not in ("enabled", "adaptive"):
        return
    if thinking["type"] == "enabled" and not 1024 <= thinking["budget_tokens"] < body["max_tokens"]:
        raise Refusal("`max_tokens` must be greater than `thinking.budget_tokens`, and that at least 1024.", "thinking")
    if body.get("temperature", 1) != 1:
        raise Refusal("`temperature` may only be set to 1 when thinking is enabled.", "temperature")
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        raise Refusal("Thinking may not be enabled when tool_choice forces tool use.", "tool_choice")


def check_tools(body: dict[str, Any]) -> set[str]:
    """Refuse invalid tools, and a choice of one that is not declared. The names are returned."""
    names: set[str] = set()
    for index, tool in enumerate(body.get("tools") or []):
        param = f"tools.{index}.custom"
        if tool.get("type", "custom") != "custom":
            names.add(tool.get("name", tool["type"]))
            continue
        if not LEGAL_NAME.fullmatch(tool["name"]):
            raise Refusal(f"{param}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'", param)
        if tool["name"] in names:
            raise Refusal("tools: Tool names must be unique.", param)
        names.add(tool["name"])
        schema = tool["input_schema"]
        if schema.get("type") != "object":
            raise Refusal(f"{param}.input_schema.type: Input should be 'object'", param)
        if not all(map(LEGAL_PROPERTY.fullmatch, schema.get("properties", {}))):
            told = "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
            raise Refusal(f"{param}.input_schema.properties: {told}", param)
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise Refusal(
                f"{param}.input_schema: JSON schema is invalid. It must match draft 2020-12 ({error.message})"
            ) from None
    if names and all(tool.get("defer_loading") for tool in body["tools"]):
        raise Refusal("At least one tool must have defer_loading=false. All tools cannot be deferred.", "tools")
    check_references(body)
    choice = body.get("tool_choice")
    if choice is not None and not names:
        raise Refusal("tool_choice: may only be specified while providing tools", "tool_choice")
    if choice is not None and choice["type"] == "tool" and choice["name"] not in names:
        raise Refusal(f"Tool '{choice['name']}' not found in provided tools", "tool_choice")
    return names


def check_references(body: dict[str, Any]) -> None:
    """Refuse references to tools that are not declared as deferred."""
    deferred = {tool["name"] for tool in body.get("tools") or [] if tool.get("defer_loading")}
    blocks = [block for message in body["messages"] for block in message["content"] if isinstance(block, dict)]
    results = [block["content"] for block in blocks if isinstance(block.get("content"), list)]
    for part in (part for result in results for part in result if part["type"] == "tool_reference"):
        if part["tool_name"] not in deferred:
            raise Refusal(f"Tool reference '{part['tool_name']}' not found in available tools", "messages")


def check_conversation(messages: list[dict[str, Any]], names: set[str]) -> None:
    """Refuse a conversation whose turns, calls and results do not match."""
    if not messages or messages[0]["role"] != "user":
        raise Refusal('messages: first message must use the "user" role', "messages")
    if messages[-1]["role"] != "user" and not is_paused(messages[-1]):
        raise Refusal(
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )
    seen: set[str] = set()
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        param = f"messages.{index}"
        if index and messages[index - 1]["role"] == message["role"]:
            raise Refusal('messages: roles must alternate between "user" and "assistant"', param)
        blocks = message["content"]
        blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
        if not blocks:
            raise Refusal(f"{param}: all messages must have non-empty content", param)
        check_blocks(message["role"], blocks, param)
        if message["role"] == "user":
            check_results(blocks, open_calls, param)
            open_calls = []
            continue
        for block in blocks:
            if block["type"] == "tool_use":
                if block["id"] in seen or not LEGAL_ID.fullmatch(block["id"]):
                    raise Refusal("messages: `tool_use` ids must be unique, and match '^[a-zA-Z0-9_-]+$'", param)
                seen.add(block["id"])
                open_calls.append(block["id"])
    if seen and not names:
        raise Refusal("Requests which include `tool_use` or `tool_result` blocks must define tools")


def is_paused(message: dict[str, Any]) -> bool:
    """Whether a turn may be an answer that the API has paused: one of its own tools has worked for it."""
    blocks = message["content"] if isinstance(message["content"], list) else []
    return any(block["type"] == "server_tool_use" for block in blocks)


def check_blocks(role: str, blocks: list[dict[str, Any]], param: str) -> None:
    """Refuse blocks that the role cannot have, empty text, and thinking that was changed."""
    allowed = ("text", "tool_use", *THINKING) if role == "assistant" else ("text", "tool_result", "image", "document")
    for number, block in enumerate(blocks):
        where = f"{param}.content.{number}"
        is_hosted = role == "assistant" and (block["type"] in BLOCKS or is_beta(block))
        if block["type"] not in allowed and not is_hosted:
            raise Refusal(f"{where}: `{block['type']}` blocks are not permitted in messages of the {role}", where)
        if block["type"] == "text" and not block["text"].strip():
            raise Refusal("messages: text content blocks must contain non-whitespace text", where)
        if block["type"] == "tool_use" and not LEGAL_NAME.fullmatch(block["name"]):
            raise Refusal(f"{where}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'", where)
        if block["type"] == "thinking" and block["signature"] != signature_of(block["thinking"]):
            raise Refusal(f"{where}: Invalid `signature` in `thinking` block", where)
    if blocks[-1]["type"] in THINKING:
        raise Refusal(f"{param}: The final block in an assistant message cannot be `thinking`.", param)


def check_results(blocks: list[dict[str, Any]], open_calls: list[str], param: str) -> None:
    """Refuse a turn that does not answer each call of the turn before it, once and before all else."""
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    missing = [call for call in open_calls if call not in results]
    if missing:
        text = f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(missing)}"
        raise Refusal(f"{param}: {text}", param)
    if unexpected := [call for call in results if call not in open_calls]:
        raise Refusal(f"{param}: unexpected `tool_use_id` found in `tool_result` blocks: {unexpected[0]}", param)
    if len(results) != len(set(results)):
        raise Refusal(f"{param}: each tool_use must have a single result", param)
    if any(block["type"] != "tool_result" for block in blocks[: len(results)]):
        raise Refusal(f"{param}: `tool_result` blocks must come first in the content", param)


def check_thinking_of_the_last_answer(body: dict[str, Any]) -> None:
    """Refuse thinking with a budget where the answer whose calls were just answered has none."""
    if (body.get("thinking") or {}).get("type") != "enabled" or len(body["messages"]) < 2:
        return
    answer, last = body["messages"][-2:]
    is_loop = isinstance(last["content"], list) and last["content"][0]["type"] == "tool_result"
    if is_loop and answer["content"][0]["type"] not in THINKING:
        raise Refusal(
            f"messages.{len(body['messages']) - 2}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{answer['content'][0]['type']}`. When `thinking` is enabled, a final `assistant` message must start with a "
            "thinking block."
        )


def check_breakpoints(body: dict[str, Any]) -> None:
    """Refuse too many marks for the cache, and marks where none may be."""
    system = body.get("system")
    places: list[Any] = [body, *(body.get("tools") or []), *(system if isinstance(system, list) else [])]
    for message in body["messages"]:
        places += message["content"] if isinstance(message["content"], list) else []
    marked = [place for place in places if place.get("cache_control")]
    if len(marked) > MOST_BREAKPOINTS:
        raise Refusal(
            f"A maximum of {MOST_BREAKPOINTS} blocks with cache_control may be provided. Found {len(marked)}."
        )
    if any(place.get("type") in THINKING for place in marked):
        raise Refusal("cache_control: thinking blocks cannot be cached directly")


def check_answer_schema(schema: dict[str, Any], definitions: Mapping[str, Any], inside: tuple[str, ...]) -> None:
    """Refuse a schema outside of the part of JSON Schema that structured answers support."""
    if unsupported := UNSUPPORTED & schema.keys():
        raise Refusal(f"output_config.format.schema: property '{min(unsupported)}' is not supported")
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        raise Refusal("output_config.format.schema: For 'object' type, 'additionalProperties' must be false")
    if isinstance(schema.get("minItems"), int) and schema["minItems"] > 1:
        raise Refusal(
            "output_config.format.schema: For 'array' type, 'minItems' values other than 0 or 1 are not supported"
        )
    reference = schema.get("$ref")
    if reference is not None:
        if reference in inside:
            raise Refusal("output_config.format.schema: Circular reference detected in schema definitions")
        name = reference.rpartition("/")[2]
        check_answer_schema(definitions[name] if name != "#" else {}, definitions, (*inside, reference))
        if reference == "#":
            raise Refusal("output_config.format.schema: Circular reference detected in schema definitions")
    inner: Iterable[Any] = [
        *schema.get("properties", {}).values(),
        *schema.get("anyOf", []),
        *schema.get("allOf", []),
        *([schema["items"]] if "items" in schema else []),
    ]
    for each in inner:
        check_answer_schema(each, definitions, inside)
