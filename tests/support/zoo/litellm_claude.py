"""LiteLLM's proxy before Claude: signed thoughts come back each as it was; names of arguments are plain; nothing is blank."""

from __future__ import annotations

from tests.support.zoo import rules, streams
from tests.support.zoo.member import Json, Member

BLOCK = {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"}


def says(message: str, status: int) -> Json:
    inner = f'{{"type":"error","error":{{"type":"invalid_request_error","message":"{message}"}}}}'
    told = f"litellm.BadRequestError: AnthropicException - {inner}. Received Model Group=claude"
    return {"error": {"message": told, "type": None, "param": None, "code": str(status)}}


def cut(blocks: list[Json]) -> list[list[Json]]:
    """A thought comes in pieces without an index; its signature is the last of them."""
    words = str(blocks[0]["thinking"])
    pieces = [(words[:4], ""), (words[4:], ""), ("", "c2ln")]
    return [[{"type": "thinking", "thinking": text, "signature": signed}] for text, signed in pieces]


MEMBER = Member(
    name="litellm_claude",
    sources=[
        "https://github.com/BerriAI/litellm/issues/29428 (thinking_blocks)",
        "https://github.com/ComposioHQ/composio/issues/3500 (names of arguments)",
        "https://github.com/ComposioHQ/composio/issues/2330 (their length)",
        "https://github.com/OpenHands/OpenHands/issues/5339 (blank texts; how it wraps an error)",
    ],
    rules=[
        rules.plain_properties(
            "tools.{number}.custom.input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{{1,64}}$'"
        ),
        rules.comes_back(
            "thinking_blocks", lambda blocks: blocks == [BLOCK], "Invalid `signature` in `thinking` block"
        ),
        rules.nothing_empty(lambda at, _role: f"messages.{at}: all messages must have non-empty content"),
        rules.no_blank_beside_calls("messages: text content blocks must contain non-whitespace text"),
    ],
    says=says,
    answers=streams.with_field("thinking_blocks", [BLOCK]),
    streams=streams.extra_pieces("thinking_blocks", cut),
)
