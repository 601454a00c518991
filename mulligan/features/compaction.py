"""`Compaction`: the older steps of a long conversation are replaced by a summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from mulligan.endpoint_model import Model, model_name
from mulligan.features.agent_feature import AgentFeature, Needs
from mulligan.model_name import SCRIPTED, ModelName

if TYPE_CHECKING:
    from mulligan.agent import Agent

SCRIPTED_SUMMARY = f"{SCRIPTED}:summary"
"""The script that summarizes where the run's model is a script (activities/models/scripted.py)."""
LEAST_AT = 1_000
"""Tokens. Below it, the summary and the words around it would be most of the conversation."""


@dataclass(frozen=True, kw_only=True)
class Compaction(AgentFeature, in_files=True):
    """The older steps of a conversation are summarized, by a model call for that purpose (docs/compaction.md).

    Args:
        at: Tokens (1,000 or more) of conversation from which on that happens.
        model: The model that summarizes; None: the run's model.
    """

    at: int
    model: str | Model | None = None

    def faults(self, agent: Agent) -> dict[str, bool]:
        """Check that the limit is a number of tokens. `agent`: whose feature it is."""
        is_wrong = type(self.at) is not int or self.at < LEAST_AT
        return {f"Compaction: at is {self.at!r}; it must be a whole number of tokens, {LEAST_AT:,} or more": is_wrong}

    def needs(self, models: Sequence[str]) -> Needs:
        """The model that summarizes, if it is not the run's own: a script has no turn for that. `models`: the run's."""
        if self.model is not None:
            return Needs(models=(self.model,))
        return Needs(models=(SCRIPTED_SUMMARY,) if ModelName.parse(models[0]).provider == SCRIPTED else ())

    def facts(self, models: Sequence[str]) -> Mapping[str, JsonValue]:
        """The limit and the model that summarizes; None: the run's. `models`: the run's."""
        others = self.needs(models).models
        return {"at": self.at, "model": model_name(others[0]) if others else None}
