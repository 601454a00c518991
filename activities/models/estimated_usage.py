"""The tokens of an answer by sizes, where no endpoint has counted them, as of one that never became whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from mulligan.activities.models.protocol import Reply, Request
from mulligan.content import media_of
from mulligan.values import AssistantMessage, Message, Usage, parts_of

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


def with_usage(request: Request, reply: Reply) -> Reply:
    """The reply with an estimate of its tokens, marked as one, where the endpoint has counted none."""
    if reply.usage.total_tokens:
        return reply
    said = AssistantMessage(role="assistant", text=reply.text, tool_calls=list(reply.calls))
    output = tokens_of(max(request.written.size, _size(said)))
    estimate = {"input_tokens": estimated_input(request), "output_tokens": output, "estimated": True}
    return replace(reply, usage=reply.usage.model_copy(update=estimate))


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
    count = sum(len(media_of(parts_of(each))) for each in messages)
    return tokens_of(size + sum(map(_size, messages))) + count * CONTENT_TOKENS


def tokens_of(size: int) -> int:
    """An estimate of the tokens of a text with a size in bytes."""
    return -(-size // BYTES_PER_TOKEN)


def _size(message: Message) -> int:
    calls = message.tool_calls if isinstance(message, AssistantMessage) else []
    texts = [message.text, *(f"{call.name}{call.arguments}" for call in calls)]
    return sum(len(text.encode(errors="replace")) for text in texts)
