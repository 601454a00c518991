"""`AgentFeature`: something that an agent does beside what every agent does, as it is declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import JsonValue

from mulligan.endpoint_model import Model

if TYPE_CHECKING:
    from mulligan.agent import Agent
    from mulligan.tool import Tool


class AgentFeature:
    """A feature that an agent is declared with: `Agent(features=[Compaction(at=60_000)])`.

    An agent has at most one of each class. Subclasses are frozen dataclasses whose fields are the feature's options. The
    feature's name is that of the module.

    Attributes:
        in_workflow: A subclass of `mulligan.feature.Feature`: what a feature of your own does in the workflow
            (docs/features.md). Mulligan's own are found by their names.
        activities: The activities of a feature of your own: functions `async def` with `@activity.defn`.
    """

    in_workflow: ClassVar[type[Any] | None] = None
    activities: ClassVar[Sequence[Callable[..., Any]]] = ()

    @property
    def name(self) -> str:
        """The name in the list of features."""
        return self.in_workflow.name() if self.in_workflow else type(self).__module__.rpartition(".")[2]

    def faults(self, agent: Agent) -> dict[str, bool]:
        """The sentences that refuse a declaration, each with whether it applies. `agent`: whose feature it is."""
        del agent
        return {}

    def models(self, model: str) -> Sequence[str | Model]:
        """The models that the feature calls beside the agent's own. `model`: the first one of the run (`provider:NAME`)."""
        del model
        return ()

    def facts(self, models: Sequence[str]) -> Mapping[str, JsonValue]:
        """What a run is scheduled by: pinned when it opens, for its whole life. `models`: the run's (`provider:NAME`)."""
        del models
        return {}

    def tools_of_feature(self) -> Sequence[Tool]:
        """The tools that the feature gives to the model."""
        return ()

    def hides(self, name: str) -> bool:
        """Whether the model does not see a tool, as only the feature calls it. `name`: the tool's."""
        del name
        return False

    def describe(self, functions: Sequence[Any]) -> str:
        """The description of its tools, where it depends on the tools that it hides: `functions`."""
        del functions
        return ""

    def tool_defaults(self) -> Mapping[str, float | None]:
        """Options of the agent's tools, for those that do not have them: `approval_timeout` … Times are seconds."""
        return {}
