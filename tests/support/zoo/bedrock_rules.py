"""What Amazon Bedrock's Converse API refuses in a conversation with Claude, in its own words.

Sources: github.com/NousResearch/hermes-agent/pull/63983 (blank texts), github.com/earendil-works/pi/pull/3443 (empty results),
github.com/ComposioHQ/composio/issues/3500 (names of arguments), and Amazon's reference of the API (ids, names, roles).
"""

from __future__ import annotations

import re
from typing import Any

from tests.support.openai_shapes import Refusal
from tests.support.zoo.rules import PROPERTY

LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
Json = dict[str, Any]


def check_converse(body: Json) -> None:
    """Refuse a request that the API would refuse."""
    tools = [tool["toolSpec"] for tool in (body.get("toolConfig") or {}).get("tools", []) if "toolSpec" in tool]
    for number, tool in enumerate(tools):
        _check_tool(tool, number)
    for part in body.get("system") or []:
        if "text" in part and not part["text"].strip():
            raise Refusal("The text field in the SystemContentBlock object at system.0 is blank. Add text.")
    open_calls: list[str] = []
    role = "assistant"
    for at, message in enumerate(body["messages"]):
        if message["role"] == role:
            start = "start with a user message" if at == 0 else "alternate between user and assistant roles"
            raise Refusal(f"A conversation must {start}. Try again with a conversation that does.")
        role = message["role"]
        if not message["content"]:
            raise Refusal(
                f"The content field in the Message object at messages.{at} is empty. Add a ContentBlock object."
            )
        _check_blocks(message["content"], at)
        _check_results(message["content"], open_calls, at)
        open_calls = [block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block]
        if open_calls and not tools:
            raise Refusal("The toolConfig field must be defined when using toolUse and toolResult content blocks.")
    if role == "assistant":
        raise Refusal(
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )


def _check_tool(tool: Json, number: int) -> None:
    if not LEGAL.fullmatch(tool["name"]):
        raise Refusal(f"tools.{number}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
    if not all(map(PROPERTY.fullmatch, tool["inputSchema"]["json"].get("properties", {}))):
        told = "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
        raise Refusal(f"tools.{number}.custom.input_schema.properties: {told}")


def _check_blocks(blocks: list[Json], at: int) -> None:
    for number, block in enumerate(blocks):
        parts = [block, *block.get("toolResult", {}).get("content", [])]
        if any("text" in part and not part["text"].strip() for part in parts):
            where = f"messages.{at}.content.{number}"
            raise Refusal(f"The text field in the ContentBlock object at {where} is blank. Add text to the text field.")
        call: Json = block.get("toolUse") or block.get("toolResult") or {}
        call_id = call.get("toolUseId", "x")
        if not LEGAL.fullmatch(call_id):
            where = f"messages.{at + 1}.member.content.{number + 1}.member.toolUse.toolUseId"
            raise Refusal(f"Value '{call_id}' at '{where}' failed to satisfy constraint: pattern: [a-zA-Z0-9_-]+")


def _check_results(blocks: list[Json], open_calls: list[str], at: int) -> None:
    results = [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block]
    if missing := [each for each in open_calls if each not in results]:
        told = f"Expected toolResult blocks at messages.{at}.content for the following Ids: {', '.join(missing)}"
        raise Refusal(told)
    if len(results) > len(open_calls):
        told = f"The number of toolResult blocks at messages.{at}.content exceeds the number of toolUse blocks"
        raise Refusal(f"{told} of previous turn.")
