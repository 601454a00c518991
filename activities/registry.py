"""The registry of the agents, scripts, tools and endpoints that a worker serves, by their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from mulligan.activities.agent_files.named_parts import NamedParts
from mulligan.activities.agent_files.served_files import ServedFiles
from mulligan.agent import Agent, with_sub_agents
from mulligan.endpoint import merge_endpoints
from mulligan.endpoint_model import Model, endpoints_of
from mulligan.errors import DeclarationError
from mulligan.mcp import server_name_of
from mulligan.score import Score
from mulligan.script import Script
from mulligan.tool import Tool


class Registry:
    """The agents, scripts and separate tools that a worker serves, and the agents that all of these may call or hand
    conversations to.

    `modules`: the namespaces of the loaded modules: agents that are files name what these declare. `file_names`: the names
    of such agents, which others may hand conversations to.

    Raises:
        DeclarationError: an agent's tools, which may have been added after its declaration, are not valid; or two different
            agents, two scripts, two endpoints, or two tools that belong to no agent here, have the same name.
    """

    def __init__(
        self,
        agents: Iterable[Agent],
        scripts: Iterable[Script] = (),
        tools: Iterable[Tool] = (),
        models: Iterable[Model] = (),
        scores: Iterable[Score] = (),
        modules: Iterable[Mapping[str, object]] = (),
        file_names: Iterable[str] = (),
    ) -> None:
        tools, known = list(tools), {*file_names}
        self.declared = self.agents = _by_name(with_sub_agents(agents, tools, handoffs=True), "agents")
        for agent in self.agents.values():
            agent.check()
            if unknown := [name for name in agent.handoff_names if name not in self.agents and name not in known]:
                raise DeclarationError(
                    f"{agent.source}: agent {agent.name!r}: handoffs names {unknown[0]!r}, but no loaded module has an "
                    "agent of that name; load its module as well, or give the Agent itself."
                )
        self.scripts = _by_name(scripts, "scripts")
        self.scores = {score.name: score for score in scores}
        """The functions that rate runs of experiments."""
        owned = {id(tool) for agent in self.agents.values() for tool in agent.listed_tools}
        self.tools = _by_name((tool for tool in tools if id(tool) not in owned), "tools")
        """Tools for agents that this worker does not know: by a tool's `task_queue`, calls come from other workers."""
        own = [endpoint for agent in self.agents.values() for endpoint in agent.endpoints()]
        self.endpoints = merge_endpoints([*own, *endpoints_of(models)])
        """The endpoints that are declared in code, by their names."""
        of_agents = [tool for agent in self.agents.values() for tool in agent.listed_tools if tool.feature is None]
        servers = [server for agent in self.agents.values() for server in agent.mcp]
        self.parts = NamedParts.of(modules, [*tools, *of_agents], servers)
        """What agents that are files may name."""
        self.files = ServedFiles()

    def serve_files(self, files: ServedFiles) -> None:
        """From now on, these agents that are files are served beside those of the modules. They have other names."""
        self.files = files
        self.agents = {**self.declared, **{name: version.agent for name, version in files.current.items()}}

    def has_tool(self, agent: str, tool: str) -> bool | None:
        """Whether an agent has a tool; None where that is not known here: another worker serves the agent, or its tools are
        known to a function or an MCP server.
        """
        known = self.agents.get(agent)
        if known is None or callable(known.tools):
            return None
        return known.tool(tool) is not None or (None if known.mcp_server(server_name_of(tool)) else False)


_T = TypeVar("_T", Agent, Script, Tool)


def _by_name(things: Iterable[_T], what: str) -> dict[str, _T]:
    known: dict[str, _T] = {}
    for thing in things:
        if known.setdefault(thing.name, thing) is not thing:
            files = sorted({known[thing.name].source, thing.source})
            raise DeclarationError(f"{', '.join(files)}: two {what} are named {thing.name!r}; give one another name.")
    return known
