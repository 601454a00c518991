"""List the agents that this worker serves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import activity

from mulligan.activities.agent_not_served import other_queues
from mulligan.activities.pin_facts import pinned_options
from mulligan.activities.services import Services
from mulligan.activities.tool_running.result_schema import result_schema
from mulligan.agent import Agent, AgentTool
from mulligan.durations import seconds
from mulligan.mcp import McpServer
from mulligan.schema.plain_function import callable_name
from mulligan.tool import Tool
from mulligan.wire.agent_list import LIST_AGENTS, AgentList
from mulligan.wire.shorten import json_size

MOST_BYTES = 1_000_000
"""Bytes of the list. Temporal's limit for a result is 2 MB."""
_DETAILS = ("tools", "mcp", "output")


@dataclass(frozen=True)
class ListAgentsActivity:
    """The activity `list_agents`."""

    services: Services

    @activity.defn(name=LIST_AGENTS)
    async def list_agents(self) -> AgentList:
        """The agents, in the order of their names."""
        registry = self.services.registry
        agents = [
            {**agent_json(agent), **registry.files.listed(name)} for name, agent in sorted(registry.agents.items())
        ]
        if json_size(agents) > MOST_BYTES:
            agents = [{name: value for name, value in agent.items() if name not in _DETAILS} for agent in agents]
        return AgentList(agents=agents, queues=await other_queues(self.services))


def _shown(source: Tool | McpServer) -> dict[str, Any]:
    """Of a tool, or of a server's tools: what calls need of a person before they run, and `trust`, where others may have
    written the results.
    """
    labels = {"trust": source.trust} if source.trust != "trusted" else {}
    if source.traits.is_question:
        return {**labels, "waits": "answer"}
    policy = source.traits.policy
    waits = "approval" if isinstance(policy, bool | str) else "approval of some calls"
    return {**labels, "waits": waits} if policy else labels


def _options_of(server: McpServer) -> dict[str, Any]:
    """The options of features that a server's tools have, by their keywords; a function is told by its name."""
    options: dict[str, Any] = {}
    for name, value in server.given.items():
        match value:
            case bool() | str():
                options[name] = value
            case int() | float() | timedelta():
                options[name] = seconds(value)
            case _:
                options[name] = callable_name(value) if callable(value) else list(value)
    return options


def agent_json(agent: Agent) -> dict[str, Any]:
    """An agent as JSON: its models, tools with their schemas, MCP servers, and output types.

    `tools_function` is the name of the function that returns the tools, where they are not listed. `waits` of a tool, or of
    a server, says that its calls wait for a person: `approval`, `approval of some calls` (a function decides), `answer`.
    `features` of a tool is what its options of features pin, by the names of these. `options` of a server are those that it
    is declared with for its tools.
    `has_tools` is also there where a worker serves too many agents to list their tools.
    """
    return {
        "name": agent.name,
        "model": agent.models[0],
        "fallbacks": list(agent.models[1:]),
        "max_steps": agent.max_steps,
        "source": agent.source,
        "client_instructions": agent.client_instructions,
        "has_tools": agent.has_tools,
        **({"handoffs": list(agent.handoff_names)} if agent.handoffs else {}),
        "tools": [
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.schema,
                "timeout": tool.timeout.total_seconds(),
                "attempts": tool.attempts,
                **({"features": pins} if (pins := pinned_options(tool, agent)) else {}),
                **({"result": result} if (result := result_schema(tool)) else {}),
                **_shown(tool),
                **({"agent": tool.agent.name} if isinstance(tool, AgentTool) else {}),
            }
            for tool in agent.listed_tools
        ],
        **(
            {"provider_tools": [{"provider": each.provider, "tool": dict(each.tool)} for each in agent.provider_tools]}
            if agent.provider_tools
            else {}
        ),
        **({"tools_function": callable_name(agent.tools)} if callable(agent.tools) else {}),
        "mcp": [
            {
                "name": server.name,
                "address": server.address,
                "include": None if server.include is None else list(server.include),
                "exclude": list(server.exclude),
                **({"options": options} if (options := _options_of(server)) else {}),
                **_shown(server),
            }
            for server in agent.mcp
        ],
        "output": [
            {"name": kind.name, "schema": kind.schema}
            for kind in (agent.declared_output.types if agent.declared_output else ())
        ],
    }
