"""The tools of MCP servers for `mulligan agents --mcp`: the servers are started for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mulligan.agent import Agent


async def add_mcp_tools(agents: Iterable[tuple[Agent, dict[str, Any]]]) -> None:
    """Add the tools that each server offers to its JSON, those that are left out, and why it is not there."""
    from mulligan.activities.mcp.servers import McpServers

    servers = McpServers()
    async with servers.running():
        rows = [(server, row) for agent, shown in agents for server, row in zip(agent.mcp, shown["mcp"], strict=True)]
        await asyncio.gather(*(_add(servers, server, row) for server, row in rows))


async def _add(servers: Any, server: Any, row: dict[str, Any]) -> None:
    from mulligan.activities.mcp.servers import Listing, unavailable_text

    listing = await servers.list_tools(server)
    if not isinstance(listing, Listing):
        row["unavailable"] = unavailable_text(server, listing)
        return
    row["tools"] = [definition.name for _, definition, _ in listing.tools]
    row["left_out"] = listing.left_out
