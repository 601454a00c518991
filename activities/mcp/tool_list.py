"""The list of a server's tools, page by page."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mulligan.activities.mcp.readable_tools import left_out_of
from mulligan.activities.mcp.response_limit import MAX_RESPONSE_BYTES

if TYPE_CHECKING:  # imported with the first session otherwise: most workers have no MCP server
    from mcp.client import Client
    from mcp.types import Tool

logger = logging.getLogger("mulligan.mcp")

MAX_PAGES = 100


@dataclass
class ToolList:
    """The tools of a server."""

    tools: list[Tool] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Why tools are left out, by their names."""


async def list_tools(client: Client) -> ToolList:
    """List all pages of a server's tools, until they are larger than one response may be.

    A cursor that was seen before ends the list, as does a page that has nothing but what was listed already: some servers
    send their first page again and again.
    """
    listed = ToolList()
    cursor: str | None = None
    cursors: set[str] = set()
    names: set[str] = set()
    room, count = MAX_RESPONSE_BYTES, 0
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        room -= len(page.model_dump_json())
        if room < 0:
            logger.warning("An MCP server's list of tools is too long; %d of them are offered.", len(listed.tools))
            break
        new = [tool for tool in page.tools if tool.name not in names]
        left_out = left_out_of(page, count)
        count += len(page.tools) + len(left_out)
        listed.left_out |= left_out
        listed.tools += new
        names.update(tool.name for tool in new)
        cursor = page.next_cursor
        if cursor is None:
            break
        if cursor in cursors or (page.tools and not new):
            logger.warning("An MCP server's list of tools repeats itself; %d of them are offered.", len(listed.tools))
            break
        cursors.add(cursor)
    return listed
