"""Find the tool that a call names: one of the agent's own, a separate one, or one of the agent's MCP servers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mulligan.activities.mcp.servers import McpServers
from mulligan.activities.registry import Registry
from mulligan.agent import Agent
from mulligan.mcp import SEPARATOR, server_name_of
from mulligan.output import Strategy
from mulligan.schema.schema_arguments import SchemaArguments
from mulligan.tool import Tool
from mulligan.wire.agent_facts import Definition


@dataclass(frozen=True)
class ToolFinder:
    """Finds tools. A worker has one."""

    registry: Registry
    servers: McpServers

    def find(
        self, agent: Agent | None, name: str, *, definition: Definition | None = None, mcp: str | None = None
    ) -> Tool | None:
        """The tool of that name, for an agent.

        Args:
            agent: The run's agent; None: this worker does not serve it, and may have the tool alone.
            name: The name by which the model calls it.
            definition: The run's definition. With it, a tool of an MCP server is returned as it was when the run opened.
            mcp: The tool's name on its MCP server, if `name` does not end with that. `definition` contains it too.
        """
        own = self.registry.tools.get(name) if agent is None else agent.tool(name)
        server = agent.mcp_server(server_name_of(name)) if agent is not None and own is None else None
        if server is None:
            return own and self._isolated(own)
        pinned = checked_by = None
        if definition is not None:
            pinned = definition.tool(name)
            if pinned is None:
                return None
            mcp = definition.mcp.get(name)
            checked_by = definition.mcp_schemas.get(name)
        return self.servers.tool(server, name, mcp or name.partition(SEPARATOR)[2], pinned, checked_by)

    def _isolated(self, tool: Tool) -> Tool:
        """The tool, so that a value whose check by a JSON schema may take long is checked in a process of its own."""
        arguments = tool.arguments
        if not isinstance(arguments, SchemaArguments):
            return tool
        return replace(tool, arguments=replace(arguments, check_isolated=self.servers.check_isolated))

    def of_run(self, agent: Agent, definition: Definition, *, in_script: bool = False) -> RunTools:
        """The tools of one run, or those that its scripts may call."""
        return RunTools(self, agent, definition, in_script)


@dataclass(frozen=True)
class RunTools:
    """The tools that the model of one run may call, as they were when it opened.

    `in_script`: those that its scripts may call, instead.
    """

    finder: ToolFinder
    agent: Agent
    definition: Definition
    in_script: bool = False

    def find(self, name: str) -> Tool | None:
        """The tool of that name; None: it cannot be called here."""
        hidden = self.definition.hidden
        if (bool(hidden) and any(each.name == name for each in hidden)) != self.in_script:
            return None
        return self.finder.find(self.agent, name, definition=self.definition)

    @property
    def output_by(self) -> Strategy:
        """How the output is requested, by the pinned definition: the same for all models of the run."""
        return "provider" if self.definition.output is not None else "tool"

    @property
    def names(self) -> list[str]:
        """The names that the model may call: its tools, and its types of output if the output is a call."""
        if self.in_script:
            return [tool.name for tool in self.definition.hidden]
        names = self.agent.callable_names(self.output_by)
        if self.definition.hidden:
            hidden = {tool.name for tool in self.definition.hidden}
            names = [name for name in names if name not in hidden]
        more = (tool.name for tool in self.definition.tools if tool.name not in names)
        is_of_run = self.agent.is_of_run  # then the definition has names of tools that may be gone
        return [
            *names,
            *(name for name in more if is_of_run or self.agent.mcp_server(server_name_of(name)) is not None),
        ]

    def is_gone(self, name: str) -> bool:
        """Whether the run had a tool of that name when it opened, and its function of tools does not return it now."""
        tools = self.definition.hidden if self.in_script else self.definition.tools
        return self.agent.is_of_run and any(tool.name == name for tool in tools)
