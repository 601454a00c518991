"""`Guarded`: what others have written does not decide an agent's consequential calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from mulligan.features.agent_feature import AgentFeature
from mulligan.features.tool_option import ToolOption, Traits
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


@dataclass(frozen=True, kw_only=True)
class GuardedOption(ToolOption):
    """Whether a call must not be decided by what others have written."""

    consequential: bool = False

    @classmethod
    def warnings(cls, agent: Agent) -> Iterable[str]:
        """Tell of calls that are not guarded, though the agent may read what others have written."""
        from mulligan.agent import with_sub_agents

        if agent.feature(Guarded) or not agent.may_read_untrusted:
            return
        # An agent that is told what its caller has read guards its own calls, if it is declared so.
        unguarded = [each for each in with_sub_agents([agent], handoffs=True) if not each.feature(Guarded)]
        names = [tool.name for each in unguarded for tool in each.listed_tools if tool.option(cls).consequential]
        names += [server.name for each in unguarded for server in each.mcp if server.consequential]
        if names:
            yield (
                f"{agent.source}: agent {agent.name!r} may read what others have written, and {names[0]!r} is "
                "consequential: declare it with features=[Guarded()], or others may decide such calls "
                "(docs/hostile-content.md)."
            )

    @property
    def traits(self) -> Traits:
        """A guard may ask a person about a call."""
        return Traits(may_ask=self.consequential)
