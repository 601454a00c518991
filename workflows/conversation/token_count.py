"""About how many tokens a conversation has. It is pure: it schedules nothing."""

from __future__ import annotations

from mulligan.content import media_of
from mulligan.values import AssistantMessage, parts_of
from mulligan.workflows.conversation.conversation import Conversation

BYTES_PER_TOKEN = 4
"""A rough estimate, for messages whose tokens no provider has counted yet."""
CONTENT_TOKENS = 1_500
"""A rough estimate for an image, and the least for another file: in the conversation they are references of 200 bytes."""


def tokens(conversation: Conversation) -> int:
    """About how many tokens the next model call sends: the provider's count at the last one, plus what was added since."""
    if not conversation.steps:
        return max(0, conversation.size(conversation.cut) - conversation.left_out) // BYTES_PER_TOKEN
    last = conversation.steps[-1]
    new = conversation.size(last.at + 1)
    new -= conversation.left_out
    counted = last.usage.total_tokens if last.context_tokens is None else last.context_tokens
    if not counted:  # some servers do not count
        return max(0, conversation.size(conversation.cut, last.at + 1) + new) // BYTES_PER_TOKEN
    return max(0, counted + new // BYTES_PER_TOKEN)


def size_of(conversation: Conversation, start: int, end: int) -> int:
    """Bytes of JSON of messages; images and files count as the bytes that their tokens stand for."""
    count = sum(len(media_of(parts_of(message))) for message in conversation.messages[start:end])
    return conversation.size(start, end) + count * CONTENT_TOKENS * BYTES_PER_TOKEN


def step_starts(conversation: Conversation) -> list[int]:
    """The indexes of the messages that steps begin with: this run's, or before its first, those in its input."""
    if conversation.steps:
        return [record.at for record in conversation.steps]
    return [index for index, message in enumerate(conversation.messages) if isinstance(message, AssistantMessage)]
