"""A real MCP server over stdin and stdout whose tool returns one block of each kind of content. It imports nothing of Mulligan."""

from __future__ import annotations

import asyncio
import base64
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

sys.path.insert(0, str(Path(__file__).parents[2]))  # a server is started without the worker's path
from tests.support.content_files import PDF, WAV, png

PICTURE, EMBEDDED = png(5_000, seed=1), png(5_000, seed=2)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def resource(uri: str, media_type: str, data: bytes) -> types.EmbeddedResource:
    return types.EmbeddedResource(
        resource=types.BlobResourceContents(uri=uri, mime_type=media_type, blob=encoded(data))
    )


BLOCKS: list[Any] = [
    types.TextContent(text="The gallery:"),
    types.ImageContent(data=encoded(PICTURE), mime_type="image/png"),
    resource("file:///art/catalogue.pdf", "application/pdf", PDF),
    resource("memo://art/photo.png", "image/png", EMBEDDED),
    types.AudioContent(data=encoded(WAV), mime_type="audio/wav"),
    types.EmbeddedResource(
        resource=types.TextResourceContents(uri="file:///art/notes.txt", mime_type="text/plain", text="By Ada.")
    ),
    types.ResourceLink(uri="https://art.test/more", name="more"),
    types.ImageContent(data=encoded(b"no image at all"), mime_type="image/png"),
]


async def list_tools(_: Any, params: Any) -> types.ListToolsResult:
    del params
    nothing: dict[str, Any] = {"type": "object", "properties": {}}
    return types.ListToolsResult(tools=[types.Tool(name="show", description="Show all.", input_schema=nothing)])


async def call_tool(_: Any, params: Any) -> types.CallToolResult:
    del params
    return types.CallToolResult(content=BLOCKS)


async def main() -> None:
    server = Server("gallery", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
