"""`AgentFeature`: something that an agent does beside what every agent does, as it is declared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mulligan.endpoint import Model

if TYPE_CHECKING:
    from mulligan.agent import Agent

__all__ = ["AgentFeature"]


class AgentFeature:
    """A feature that an agent is declared with: `Agent(features=[Compaction(at=60_000)])`.

    An agent has at most one of each class. Subclasses are frozen dataclasses whose fields are the feature's options.
    """

    def faults(self, agent: Agent) -> dict[str, bool]:
        """The sentences that refuse a declaration, each with whether it applies. `agent`: whose feature it is."""
        del agent
        return {}

    def models(self) -> Sequence[str | Model]:
        """The models that the feature calls beside the agent's own."""
        return ()
