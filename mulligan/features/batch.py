"""`Batch`: models are called through their provider's Batch API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from mulligan.features.agent_feature import AgentFeature, Needs
from mulligan.model_name import can_be_batched

if TYPE_CHECKING:
    from mulligan.agent import Agent


@dataclass(frozen=True, kw_only=True)
class Batch(AgentFeature, in_files=True):
    """Models of `openai:` and `openai-chat:` are called through OpenAI's Batch API (docs/batch.md).

    An answer may take a day, and costs half.
    """

    def faults(self, agent: Agent) -> dict[str, bool]:
        """Check that one of the models of `agent` has a Batch API, and that a call is made in one way only."""
        named = ", ".join(map(repr, agent.models))
        return {
            "Batch and Background are both features; an answer comes in one of these ways": agent.has_feature(
                "background"
            ),
            f"Batch is for models of 'openai:' and 'openai-chat:', but the model is {named}; name one of these, or leave "
            "Batch out": not can_be_batched(agent.models),
        }

    def needs(self, models: Sequence[str]) -> Needs:
        """Calls of the run's `models` are written to the storage where these are called in batches."""
        return Needs(storage=can_be_batched(models))

    def facts(self, models: Sequence[str]) -> Mapping[str, JsonValue]:
        """Pin which of the run's `models` are called in batches."""
        return {"models": [model for model in models if can_be_batched([model])]}
