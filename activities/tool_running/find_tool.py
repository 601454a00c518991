"""Which tool a call means: an agent's own, a loose one, or one of its MCP servers'. One way, wherever it is asked."""

from __future__ import annotations

from dataclasses import dataclass

from mulligan.activities.mcp.servers import McpServers
from mulligan.activities.registry import Registry
from mulligan.agent import Agent
from mulligan.mcp import SEPARATOR, server_name_of
from mulligan.output import Strategy
from mulligan.tool import Tool
from mulligan.wire.agent_facts import Definition


@dataclass(frozen=True)
class ToolFinder:
    """Finds tools: one for a worker."""

    registry: Registry
    servers: McpServers

    def find(self, agent: str, name: str, *, pinned: Definition | None = None, mcp: str | None = None) -> Tool | None:
        """The tool of that name, for an agent.

        Args:
            agent: The agent's name.
            name: The name by which the model calls it.
            pinned: What the run's model is told: an MCP server's tool is what it was as the run opened, or it is not there.
            mcp: What its MCP server calls it, where the name does not end with that; `pinned` says so too.
        """
        own = self.registry.tool(agent, name)
        known = self.registry.agents.get(agent)
        server = known.mcp_server(server_name_of(name)) if known is not None and own is None else None
        if server is None:
            return own
        shown = None
        if pinned is not None:
            shown = next((tool for tool in pinned.tools if tool.name == name), None)
            if shown is None:
                return None
            mcp = pinned.mcp.get(name)
        return self.servers.tool(server, name, mcp or name.partition(SEPARATOR)[2], shown)

    def of_run(self, agent: Agent, pinned: Definition) -> RunTools:
        """The tools of one run."""
        return RunTools(self, agent, pinned)


@dataclass(frozen=True)
class RunTools:
    """The tools that the model of one run may call, as they were when it opened."""

    finder: ToolFinder
    agent: Agent
    pinned: Definition

    def find(self, name: str) -> Tool | None:
        """The tool of that name."""
        return self.finder.find(self.agent.name, name, pinned=self.pinned)

    @property
    def output_by(self) -> Strategy:
        """How its output is asked for, as it was pinned: of its models one may be asked that takes no other way than all."""
        return "provider" if self.pinned.output is not None else "tool"

    @property
    def names(self) -> list[str]:
        """All that the model may call: tools, and the output where it is given by a call."""
        names = self.agent.callable_names(self.output_by)
        more = (tool.name for tool in self.pinned.tools if tool.name not in names)
        return [*names, *(name for name in more if self.agent.mcp_server(server_name_of(name)) is not None)]
