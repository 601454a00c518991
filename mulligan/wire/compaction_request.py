"""What the workflow and the worker hand each other when a conversation is made shorter. In history, as all of handoff."""

from __future__ import annotations

from pydantic import BaseModel

from mulligan.schema.optional_field import optional_field
from mulligan.values import ErrorInfo, Usage
from mulligan.wire.model_call import ConversationRequest

__all__ = ["COMPACT_CONVERSATION", "CompactConversation", "Compacted"]

COMPACT_CONVERSATION = "compact_conversation"
"""Temporal's activity type."""


class CompactConversation(ConversationRequest):
    """Sum up the first `cut` messages of a conversation: found as for a `ModelCall`.

    `model` is asked; `run_model` is the run's, in whose form the worker holds the conversation. `compact_at`: the agent's
    limit, in tokens. `step`: the one that comes next.
    """

    model: str
    run_model: str
    step: int
    cut: int
    compact_at: int
    patience: float
    timeout: float
    attempts: int | None = optional_field()


class Compacted(BaseModel):
    """The summary, and the `heading` under which the model reads it; with an `error` there is none to be taken."""

    heading: str = ""
    summary: str = ""
    usage: Usage = Usage()
    error: ErrorInfo | None = optional_field()
