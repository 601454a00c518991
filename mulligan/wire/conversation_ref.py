"""How a conversation is spoken of between workflow and workers: by its length and digest, not by its messages."""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import BaseModel

from mulligan.values import Message

CONVERSATION_QUERY = "mulligan_conversation"
"""The query by which a worker asks a workflow for messages that its cache does not hold."""
INPUT_MESSAGES_QUERY = "mulligan_input_messages"
"""The same for the messages that a turn was given, where they are too many for the query of its input."""


def chain_digest(digest: str, message: BaseModel) -> tuple[str, int]:
    """The digest of a conversation with one more message, and that message's size in bytes as JSON.

    Workflow and worker each compute it, so what a worker holds is known to be what the workflow means.
    """
    encoded = message.model_dump_json().encode()
    return hashlib.sha256(digest.encode() + encoded).hexdigest()[:16], len(encoded)


class ConversationRef(BaseModel):
    """A conversation by its length and the chained digest of its messages: what a worker may hold in its cache."""

    count: int
    digest: str


class CachedResult(BaseModel):
    """A tool result by its call's id alone: the worker that made it holds it, so that it stands in history once."""

    role: Literal["held"]
    call_id: str


class PageRequest(BaseModel):
    """A worker asks the workflow for messages of a conversation that it does not hold: `count` of them, from `since`."""

    conversation: str
    since: int
    count: int


class Page(BaseModel):
    """Messages from the one asked for on, as many as fit into an answer."""

    messages: list[Message]
