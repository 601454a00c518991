"""`Guarded`: what others have written does not decide an agent's consequential calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from mulligan.features.agent_feature import AgentFeature
from mulligan.foreign_results import GuardAction

if TYPE_CHECKING:
    from mulligan.agent import Agent


@dataclass(frozen=True)
class Guarded(AgentFeature, in_files=True):
    """Guard the calls of tools with `consequential=True`, once the agent's context has an untrusted result.

    It guards what is done, not what is said: an answer may still say what a page wants it to say (docs/hostile-content.md).

    Args:
        action: "ask": a call waits for a person, who sees which untrusted results the agent has read. "deny": it is
            `denied`.
    """

    action: GuardAction = "ask"

    def faults(self, agent: Agent) -> dict[str, bool]:
        """Check the action. `agent`: whose feature it is."""
        return {f"Guarded: action must be 'ask' or 'deny', but is {self.action!r}": self.action not in ("ask", "deny")}

    def facts(self, models: Sequence[str]) -> Mapping[str, JsonValue]:
        """What a run is guarded by, whatever its `models` are."""
        return {"action": self.action}
