"""Checks of MCP servers: whether they can be started or reached, and which of their tools cannot be used."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from mulligan.activities.mcp.servers import Listing, McpServers, unavailable_text
from mulligan.doctor.finding import Finding
from mulligan.mcp import McpServer
from mulligan.worker.loading import LoadedModules

CHECK = "MCP servers"


async def list_tools(declared: Iterable[McpServer]) -> list[Listing | str]:
    """What each server offers, or the sentence that says why it is not there. The servers are started for it."""
    servers = McpServers()

    async def listing_of(server: McpServer) -> Listing | str:
        listing = await servers.list_tools(server)
        return listing if isinstance(listing, Listing) else unavailable_text(server, listing)

    async with servers.running():
        return await asyncio.gather(*map(listing_of, declared))


async def check_mcp(loaded: LoadedModules | None) -> list[Finding]:
    """List the tools of each server of the loaded agents: one finding each, and one for each tool that is left out."""
    agents = loaded.registry.agents.values() if loaded else ()
    declared = list({id(server): server for agent in agents for server in agent.mcp}.values())
    listings = zip(declared, await list_tools(declared), strict=True)
    return [finding for server, listing in listings for finding in _findings(server, listing)]


def _findings(server: McpServer, listing: Listing | str) -> list[Finding]:
    if isinstance(listing, str):
        return [Finding(CHECK, "problem", listing.rstrip("."))]
    left_out = [Finding(CHECK, "warning", sentence.rstrip(".")) for sentence in listing.left_out]
    number = len(listing.tools)
    return [Finding(CHECK, "ok", f"{server.name}: {number} {'tool' if number == 1 else 'tools'}"), *left_out]
