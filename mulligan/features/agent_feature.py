"""`AgentFeature`: something that an agent does beside what every agent does, as it is declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import JsonValue

from mulligan.endpoint_model import Model
from mulligan.features.feature_parts import FeatureParts

if TYPE_CHECKING:
    from mulligan.agent import Agent
    from mulligan.tool import Tool


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What runs need because of a feature.

    `models`: those that it calls. `instructions`: returns a text that is added to the agent's when a run opens. `storage`:
    whether the workers need a storage for content.
    """

    models: Sequence[str | Model] = ()
    instructions: Callable[[], str] = str
    storage: bool = False


class AgentFeature:
    """A feature that an agent is declared with: `Agent(features=[Compaction(at=60_000)])`.

    An agent has at most one of each class. Subclasses are frozen dataclasses whose fields are the feature's options. The
    feature's name is that of the module.

    Attributes:
        parts: Of what a feature of your own consists (docs/features.md).
        in_files: Whether an agent's file may have the feature, with its options (docs/agent-files.md): all of these must be
            plain values, and none may name a place outside of the worker.
    """

    parts: ClassVar[FeatureParts | None] = None
    in_files: ClassVar[bool] = False

    def __init_subclass__(cls, *, in_files: bool = False) -> None:
        cls.in_files = in_files

    @property
    def name(self) -> str:
        """The name in the list of features."""
        return self.parts.name if self.parts else type(self).__module__.rpartition(".")[2]

    @classmethod
    def implied_by(cls, agent: Agent) -> AgentFeature | None:  # noqa: ARG003
        """The feature for an `agent` that is not declared with it, but whose tools ask for it."""
        return None

    def faults(self, agent: Agent) -> dict[str, bool]:
        """The sentences that refuse a declaration, each with whether it applies. `agent`: whose feature it is."""
        return {}

    def facts(self, models: Sequence[str]) -> Mapping[str, JsonValue]:
        """What a run is scheduled by: pinned when it opens, for its whole life. `models`: the run's (`provider:NAME`)."""
        return {}

    def added_tools(self, agent: Agent) -> Sequence[Tool]:
        """The tools that the feature adds to those of `agent`. In their calls, `ctx.pinned` is what `facts` has returned."""
        return ()

    def needs(self, models: Sequence[str]) -> Needs:
        """What runs with it need beside the agent's own. `models`: the run's (`provider:NAME`)."""
        return Needs()
