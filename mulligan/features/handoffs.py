"""How agents hand a conversation over: the tools `transfer_to_NAME` of an agent with `handoffs`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from pydantic import JsonValue

from mulligan.features.agent_feature import AgentFeature
from mulligan.schema.arguments_model import arguments_model
from mulligan.tool import Tool, ToolContext, ToolError

if TYPE_CHECKING:
    from mulligan.agent import Agent

_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")
"""What the name of a tool may not contain."""


@dataclass(frozen=True, kw_only=True)
class Handoffs(AgentFeature):
    """The handoffs of an agent, as its options declare them.

    Args:
        agents: The names of the agents that it may hand the conversation to.
        most: How often a run that begins with the agent may hand its conversation over.
        max_depth: How many levels of sub-agents may be below such a run, whichever agent has the conversation.
        descriptions: What the agents are good for, by their names, as far as they say it.
    """

    agents: tuple[str, ...]
    most: int
    max_depth: int
    descriptions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def implied_by(cls, agent: Agent) -> Handoffs | None:
        """The feature of an agent with `handoffs`."""
        if not agent.handoffs:
            return None
        descriptions = {each.name: each.description for each in agent.handoffs if not isinstance(each, str)}
        names, most, depth = agent.handoff_names, agent.max_handoffs, agent.max_depth
        return Handoffs(agents=names, most=most, max_depth=depth, descriptions=descriptions)

    def facts(self, models: Sequence[str]) -> Mapping[str, JsonValue]:
        """The agents by the names of their tools, and the limits. `models`: the run's."""
        targets: dict[str, JsonValue] = {transfer_tool(name): name for name in self.agents}
        return {"targets": targets, "most": self.most, "max_depth": self.max_depth}

    def added_tools(self, agent: Agent) -> Sequence[Tool]:
        """A tool for each agent. `agent`: whose feature it is."""
        return [
            Tool(
                function=_transfer,
                arguments=arguments_model(_transfer, transfer_tool(name), ToolContext),
                name=transfer_tool(name),
                description=(
                    f"Hand this conversation over to the agent `{name}`, which goes on with it in your place, with its own "
                    "instructions and tools. It has read all that was said. Call only one tool of this kind in a step."
                    + (f" {about}" if (about := self.descriptions.get(name)) else "")
                ),
                timeout=timedelta(seconds=60),
            )
            for name in self.agents
        ]


def transfer_tool(agent: str) -> str:
    """The name of the tool that hands a conversation over to an agent; what no tool's name may contain becomes `_`."""
    return f"transfer_to_{_ILLEGAL.sub('_', agent)}"


def _transfer() -> str:
    # The workflow calls an activity of its own in place of it.
    raise ToolError("No conversation can be handed over here.")
