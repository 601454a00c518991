"""The tokens of an answer that never became whole, by what is known of it: no endpoint says what it bills for one."""

from __future__ import annotations

import json
from collections.abc import Sequence

from mulligan.activities.models.protocol import Request
from mulligan.content import media_of
from mulligan.values import AssistantMessage, Message, Usage

BYTES_PER_TOKEN, CONTENT_TOKENS = 4, 1_500
"""Rough estimates of text, and of an image or a file: the same as for a compaction."""


def estimated_usage(request: Request) -> Usage:
    """The endpoint's own count, or an estimate by the sizes of the request and of the text that has arrived."""
    counted = request.written.usage
    return counted.model_copy(
        update={
            "input_tokens": counted.input_tokens or estimated_input(request),
            "output_tokens": max(counted.output_tokens, tokens_of(request.written.size)),
        }
    )


def estimated_input(request: Request) -> int:
    """An estimate of the tokens of a request: what the provider has counted last, and what was added since by its size."""
    if request.counted is not None and request.counted[0] <= len(request.messages):
        count, tokens = request.counted
        return tokens + _estimated(request.messages[count:])
    definition = request.definition
    tools = json.dumps([tool.model_dump(mode="json") for tool in definition.tools], ensure_ascii=False)
    texts = [definition.instructions, tools] if definition.tools else [definition.instructions]
    return _estimated(request.messages, sum(len(text.encode(errors="replace")) for text in texts))


def _estimated(messages: Sequence[Message], size: int = 0) -> int:
    """An estimate of the tokens of messages, and of other texts with a size in bytes."""
    count = sum(len(media_of(each.content)) for each in messages if not isinstance(each, AssistantMessage))
    return tokens_of(size + sum(map(_size, messages))) + count * CONTENT_TOKENS


def tokens_of(size: int) -> int:
    """An estimate of the tokens of a text with a size in bytes."""
    return -(-size // BYTES_PER_TOKEN)


def _size(message: Message) -> int:
    calls = message.tool_calls if isinstance(message, AssistantMessage) else []
    return len(message.text.encode()) + sum(len(f"{call.name}{call.arguments}".encode()) for call in calls)
