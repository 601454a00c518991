"""Where a conversation is cut by a compaction. It is pure: it schedules nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mulligan.content import Part, media_of
from mulligan.values import AssistantMessage, Message
from mulligan.workflows.conversation.conversation import Conversation

BYTES_PER_TOKEN = 4
"""A rough estimate, for messages whose tokens no provider has counted yet."""
CONTENT_TOKENS = 1_500
"""A rough estimate for an image, and the least for another file: in the conversation they are references of 200 bytes."""
PARTS = 4
"""The newest steps keep at most a quarter of the limit, and a compaction that removes less than a quarter is not made."""


def tokens(conversation: Conversation) -> int:
    """About how many tokens the next model call sends: the provider's count at the last one, plus what was added since."""
    if not conversation.steps:
        return conversation.size(conversation.cut) // BYTES_PER_TOKEN
    last = conversation.steps[-1]
    new = conversation.size(last.at + 1)
    counted = last.usage.total_tokens if last.context_tokens is None else last.context_tokens
    if not counted:  # some servers do not count
        return (conversation.size(conversation.cut, last.at + 1) + new) // BYTES_PER_TOKEN
    return counted + new // BYTES_PER_TOKEN


def place_of_cut(conversation: Conversation, limit: int) -> int | None:
    """The index of the first message that is kept; None if too little would be removed. `limit` is in tokens.

    A cut is always at the start of a step, so that no call loses its result. The newest step is always kept, and as many
    before it as fit.
    """
    size = partial(size_of, conversation)
    kept_bytes, cut, end = 0, None, len(conversation.messages)
    for start in reversed(_step_starts(conversation)):
        kept_bytes += size(start, end)
        end = start
        if start <= conversation.cut or (cut is not None and kept_bytes > limit // PARTS * BYTES_PER_TOKEN):
            break
        cut = start
    if cut is None:
        return None
    first, after_last = (number - conversation.first_message for number in conversation.request_span)
    request_bytes = size(first, after_last) if conversation.cut <= first < cut else 0
    removed_bytes = size(conversation.cut, cut) - request_bytes
    return cut if removed_bytes >= limit // PARTS * BYTES_PER_TOKEN else None


def size_of(conversation: Conversation, start: int, end: int) -> int:
    """Bytes of JSON of messages; images and files count as the bytes that their tokens stand for."""
    count = sum(len(media_of(_content(message))) for message in conversation.messages[start:end])
    return conversation.size(start, end) + count * CONTENT_TOKENS * BYTES_PER_TOKEN


def _content(message: Message) -> Sequence[Part] | None:
    return None if isinstance(message, AssistantMessage) else message.content


def _step_starts(conversation: Conversation) -> list[int]:
    """The indexes of the messages that steps begin with: this run's, or before its first, those in its input."""
    if conversation.steps:
        return [record.at for record in conversation.steps]
    return [index for index, message in enumerate(conversation.messages) if isinstance(message, AssistantMessage)]
