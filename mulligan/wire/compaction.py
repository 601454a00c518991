"""`compact_conversation`: the request to summarize the beginning of a conversation, and the summary.

All of it is in history: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

from mulligan.features.feature_parts import FeatureWords
from mulligan.schema.optional_field import optional_field
from mulligan.values import ErrorInfo, Usage
from mulligan.wire.checked_result import CheckedResult, are_tokens
from mulligan.wire.model_call import ModelRequest

COMPACT_CONVERSATION = "compact_conversation"
"""Temporal's activity type."""


class CompactConversation(ModelRequest):
    """Input of `compact_conversation`: summarize the first `cut` messages of a conversation.

    `model` writes the summary; `run_model` is the run's model, in whose format the worker caches the conversation.
    `compact_at`: the agent's limit, in tokens. `step`: the next step.
    """

    run_model: str
    cut: int
    compact_at: int


class Compacted(CheckedResult):
    """Result of `compact_conversation`: the summary and the `heading` above it; with an `error` there is no summary."""

    heading: str = ""
    summary: str = ""
    usage: Usage = Usage()
    error: ErrorInfo | None = optional_field()

    def fault(self) -> str | None:
        """Why the summary cannot be used: its usage is added to the run's."""
        return None if are_tokens(self.usage) else "its usage is no number of tokens"


WORDS = FeatureWords(activities=(COMPACT_CONVERSATION,), model_calls=(COMPACT_CONVERSATION,))
