"""How agents and tools are declared with the feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import JsonValue

from mulligan import AgentFeature
from mulligan.feature import FeatureParts, ToolOption, Traits

from . import PARTS

if TYPE_CHECKING:
    from mulligan import Agent, Tool


@dataclass(frozen=True)
class QuietHours(AgentFeature):
    """Its tools may have `Quiet`."""

    parts: ClassVar[FeatureParts] = PARTS
    place: str = "the house"

    def facts(self, models: Sequence[str]) -> Mapping[str, JsonValue]:
        return {"place": self.place}


@dataclass(frozen=True, kw_only=True)
class Quiet(ToolOption):
    """For how many seconds a call waits; and whether a person must wake it then."""

    feature: ClassVar[str] = "quiet_hours"
    seconds: float = 0
    wakes_person: bool = False

    def faults(self, tool: Tool) -> dict[str, bool]:
        is_number = isinstance(self.seconds, int | float) and 0 <= self.seconds < float("inf")
        return {
            f"Quiet: seconds must be 0 or more, but is {self.seconds!r}": not is_number,
            "Quiet: a local tool does not wait; leave local out": tool.local,
        }

    @property
    def traits(self) -> Traits:
        return Traits(may_ask=self.wakes_person)

    def pin(self, tool: Tool, agent: Agent) -> JsonValue:
        return {"seconds": self.seconds, "wakes_person": self.wakes_person} if self.seconds else None
