"""An agent whose scripts call every kind of tool: deferred ones, sub-agents, an MCP server's, tools that return images."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from mulligan import Agent, Call, CodeMode, File, Image, McpServer, Say, Script, Tool, ToolContext, tool
from tests.support.content_files import PDF, png

SERVER = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]
MODEL = "openai-chat:nobody"


@tool(deferred=True, result_type=dict[str, Any], deferred_timeout=3600)
async def order(room: str, ctx: ToolContext) -> str:
    """Order a room, which somebody confirms later."""
    return f"ordered {room}"


@tool(deferred=True, deferred_timeout=1)
async def forget(ctx: ToolContext) -> str:
    """Order something that never comes."""
    return "ordered"


@tool
def photo() -> list[Any]:
    """Take a photo, and write a report."""
    return ["Here:", Image.from_bytes(png(), name="small.png"), File.from_bytes(PDF, name="a.pdf")]


@tool
def portrait() -> Image:
    """Take a portrait: a script gets its text."""
    return Image.from_bytes(png(), name="face.png")


@tool
async def note(text: str) -> str:
    """Note a text."""
    return f"noted {text}"


_alone = asyncio.Lock()


@tool
async def note_alone(text: str) -> str:
    """Note a text, a while after the one before: results do not come at the same time."""
    async with _alone:
        await asyncio.sleep(0.2)
    return f"noted {text}"


@tool(needs_approval=True)
async def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


helper = Agent(name="code_helper", model="scripted:code_helper", tools=[note])
helping = Script("code_helper", [Say(calls=[Call("note", {"text": "below"})]), Say("I have noted it.")])
lost = Agent(name="code_lost", model="scripted:code_lost", max_steps=1, tools=[note])
losing = Script("code_lost", [Say(calls=[Call("note", {"text": "never"})]), Say("Too late.")])
TOOLS: list[Tool] = [
    order,
    forget,
    photo,
    portrait,
    note,
    note_alone,
    refund,
    helper.as_tool(description="Helps."),
    lost.as_tool(description="Fails."),
]
MCP = [McpServer("lent", command=SERVER, include=["echo", "fail", "structured", "picture"], timeout=20)]
coder = Agent(name="tool_coder", model=MODEL, tools=TOOLS, mcp=MCP, features=[CodeMode()], max_steps=20)
brief = Agent(name="brief_coder", model=MODEL, tools=TOOLS, features=[CodeMode()], max_steps=1)
thrifty = Agent(name="thrifty_coder", model=MODEL, tools=TOOLS, features=[CodeMode()], max_total_tokens=1_000)
plain = Agent(name="plain_noter", model=MODEL, tools=[note_alone])
