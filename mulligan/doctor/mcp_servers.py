"""Checks of MCP servers: whether they can be started or reached, and which of their tools cannot be used."""

from __future__ import annotations

import asyncio

from mulligan.activities.mcp.servers import Listing, McpServers, unavailable_text
from mulligan.doctor.finding import Finding
from mulligan.mcp import McpServer
from mulligan.worker.loading import LoadedModules

CHECK = "MCP servers"


async def check_mcp(loaded: LoadedModules | None) -> list[Finding]:
    """List the tools of each server of the loaded agents: one finding each, and one for each tool that is left out."""
    agents = loaded.registry.agents.values() if loaded else ()
    declared = list({id(server): server for agent in agents for server in agent.mcp}.values())
    servers = McpServers()
    async with servers.running():
        found = await asyncio.gather(*(_check(servers, server) for server in declared))
    return [finding for findings in found for finding in findings]


async def _check(servers: McpServers, server: McpServer) -> list[Finding]:
    listing = await servers.list_tools(server)
    if not isinstance(listing, Listing):
        return [Finding(CHECK, "problem", unavailable_text(server, listing).rstrip("."))]
    left_out = [Finding(CHECK, "warning", sentence.rstrip(".")) for sentence in listing.left_out]
    number = len(listing.tools)
    return [Finding(CHECK, "ok", f"{server.name}: {number} {'tool' if number == 1 else 'tools'}"), *left_out]
