"""Who knows all that a worker serves, by their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from mulligan.agent import Agent, with_sub_agents
from mulligan.errors import DeclarationError
from mulligan.script import Script
from mulligan.tool import Tool

__all__ = ["Registry"]


class Registry:
    """The agents, scripts and loose tools that a worker serves, with all agents that these hand work to.

    Raises:
        DeclarationError: an agent's tools, which may have grown since it was declared, cannot be; or two different agents,
            two scripts, or two tools that belong to no agent here, have one name.
    """

    def __init__(self, agents: Iterable[Agent], scripts: Iterable[Script] = (), tools: Iterable[Tool] = ()) -> None:
        tools = list(tools)
        self.agents = _by_name(with_sub_agents(agents, tools), "agents")
        for agent in self.agents.values():
            agent.check()
        self.scripts = _by_name(scripts, "scripts")
        owned = {id(tool) for agent in self.agents.values() for tool in agent.tools}
        self.tools = _by_name((tool for tool in tools if id(tool) not in owned), "tools")
        """Served for agents that this worker does not know: by the `task_queue` of a tool, a call comes from elsewhere."""

    def tool(self, agent: str, name: str) -> Tool | None:
        """The tool that a call means: the agent's own; a loose one where the agent is not known here."""
        known = self.agents.get(agent)
        return known.tool(name) if known is not None else self.tools.get(name)


_T = TypeVar("_T", Agent, Script, Tool)


def _by_name(things: Iterable[_T], what: str) -> dict[str, _T]:
    known: dict[str, _T] = {}
    for thing in things:
        if known.setdefault(thing.name, thing) is not thing:
            files = sorted({known[thing.name].source, thing.source})
            raise DeclarationError(f"{', '.join(files)}: two {what} are named {thing.name!r}; give one another name.")
    return known
