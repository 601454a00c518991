"""What the workflow and the worker hand each other when a conversation is made shorter. In history, as all of handoff."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from mulligan.handoff import Held, Ref, Where
from mulligan.values import AssistantMessage, ErrorInfo, ToolMessage, Usage, UserMessage

__all__ = ["COMPACT_CONVERSATION", "CompactConversation", "Compacted"]

COMPACT_CONVERSATION = "compact_conversation"
"""Temporal's activity type."""


class CompactConversation(BaseModel):
    """Sum up the first `cut` messages of a conversation: found as for a `ModelCall`, by `prefix`, `new` and `whole`.

    `model` is asked; `run_model` is the run's, in whose form the worker holds the conversation. `compact_at`: the agent's
    limit, in tokens. `step`: the one that comes next.
    """

    where: Where
    model: str
    run_model: str
    step: int
    cut: int
    compact_at: int
    prefix: Ref
    new: list[Annotated[UserMessage | AssistantMessage | ToolMessage | Held, Field(discriminator="role")]] | None
    whole: Ref
    patience: float
    timeout: float
    attempts: int | None = Field(default=None, exclude_if=lambda value: value is None)


class Compacted(BaseModel):
    """The summary, and the `heading` under which the model reads it; with an `error` there is none to be taken."""

    heading: str = ""
    summary: str = ""
    usage: Usage = Usage()
    error: ErrorInfo | None = Field(default=None, exclude_if=lambda value: value is None)
