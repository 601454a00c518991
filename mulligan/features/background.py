"""`Background`: models are called in the background mode of their provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pydantic import JsonValue

from mulligan.durations import as_timedelta, seconds
from mulligan.features.agent_feature import AgentFeature
from mulligan.model_name import ModelName

if TYPE_CHECKING:
    from mulligan.agent import Agent


@dataclass(frozen=True, kw_only=True)
class Background(AgentFeature, in_files=True):
    """Models of `openai:` are called in OpenAI's background mode (docs/background.md).

    The run waits for the answer, for hours, without a connection, and OpenAI stores it until the run has it.

    Args:
        timeout: Seconds, or a timedelta, for one response, in place of the agent's `model_timeout`.
    """

    timeout: float | timedelta = 86_400

    def faults(self, agent: Agent) -> dict[str, bool]:
        """Check that one of the models of `agent` has background responses."""
        named = ", ".join(map(repr, agent.models))
        return {
            f"Background: timeout must be more than 0 seconds, but is {self.timeout!r}": as_timedelta(self.timeout)
            <= timedelta(0),
            f"Background is for models of 'openai:' (the Responses API), but the model is {named}; name one of 'openai:', "
            "or leave Background out": not any(map(_has_background, agent.models)),
        }

    def facts(self, models: Sequence[str]) -> Mapping[str, JsonValue]:
        """Pin a response's limit in seconds, and which of the run's `models` answer in the background."""
        return {"timeout": seconds(self.timeout), "models": [*filter(_has_background, models)]}


def _has_background(model: str) -> bool:
    return ModelName.parse(model).traits.in_background
