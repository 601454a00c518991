"""Agents with a real MCP server (tests/support/mcp_server.py), started by the worker."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mulligan import Agent, McpServer, ToolCall, ToolContext, ToolError, tool
from tests.support.people_agents import discount, refund

SERVER = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]


@tool
def now() -> str:
    """Tell the time."""
    return "noon"


def only_small_numbers(call: ToolCall, ctx: ToolContext) -> str | None:
    return "nine is too many." if json.loads(call.arguments).get("upto") == 9 else None


lent = McpServer("lent", command=SERVER, timeout=20, env={"GIVEN": "${MCP_TEST_SECRET}"}, pass_env=["MCP_TEST_PASSED"])
borrower = Agent(
    name="borrower", model="openai-chat:nobody", instructions="You borrow.", tools=[now], mcp=[lent], max_steps=40
)
careful = Agent(
    name="careful",
    model="openai-chat:nobody",
    mcp=[
        McpServer("few", command=SERVER, include=["ech*", "count"], timeout=20, handle_errors="It did not work."),
        McpServer("again", command=SERVER, include=["die_once", "hang", "fail"], timeout=1, attempts=2),
        McpServer("strict", command=SERVER, include=["fail"], handle_errors=ToolError),
    ],
    guard=only_small_numbers,
)
asking = Agent(
    name="asking",
    model="openai-chat:nobody",
    mcp=[McpServer("asks", command=SERVER, exclude=["s*", "h*"], needs_approval=["*.delete/*", "count"])],
)
booker = Agent(
    name="booker",
    model="openai-chat:nobody",
    mcp=[
        McpServer("ask", command=SERVER, env={"ASKS": "1"}, include=["book", "open_page"], needs_approval=["open_page"])
    ],
)
clerk = Agent(
    name="clerk",
    model="openai-chat:nobody",
    tools=[refund, discount],
    mcp=[McpServer("ask", command=SERVER, env={"ASKS": "1"}, include=["book"])],
)
forlorn = Agent(
    name="forlorn",
    model="openai-chat:nobody",
    instructions="Go on.",
    tools=[now],
    mcp=[
        McpServer("nowhere", command=["/no/such/program"]),
        McpServer("silent", command=[sys.executable, "-c", "import time; time.sleep(60)"], start_timeout=1),
        McpServer("unset", command=SERVER, env={"KEY": "${NO_SUCH_VARIABLE}"}),
        McpServer("closed", url="http://127.0.0.1:9/mcp"),
    ],
)
