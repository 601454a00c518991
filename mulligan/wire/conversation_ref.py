"""A conversation by its length and digest: how workflow and workers refer to it without sending its messages."""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import BaseModel

from mulligan.values import Message

CONVERSATION_QUERY = "mulligan_conversation"
"""The query for messages of a conversation that are not in a worker's cache."""
INPUT_MESSAGES_QUERY = "mulligan_input_messages"
"""The query for the messages in a turn's input, where they are too large for the query of the whole input."""

REQUEST_QUERY = "mulligan_request"
"""The query for the text of the user's message that the newest turn has begun with."""


def chain_digest(digest: str, message: BaseModel) -> tuple[str, int]:
    """The digest of a conversation with one more message, and that message's size in bytes as JSON.

    Workflow and worker both compute it: with equal digests, the cached messages are those of the workflow.
    """
    encoded = message.model_dump_json().encode()
    return hashlib.sha256(digest.encode() + encoded).hexdigest()[:16], len(encoded)


class ConversationRef(BaseModel):
    """A conversation by the number of its messages and their chained digest."""

    count: int
    digest: str


class CachedResult(BaseModel):
    """A tool result by its call's id: the worker that ran the tool has it in its cache, so that it is in history once."""

    role: Literal["cached_result"]
    call_id: str


class PageRequest(BaseModel):
    """Input of the query: `count` messages of a conversation, from number `since` on."""

    conversation: str
    since: int
    count: int


class Page(BaseModel):
    """Result of the query: the messages from the requested one on, as many as fit into a payload."""

    messages: list[Message]
