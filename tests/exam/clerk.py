"""The agent of a domain: the benchmark's policy as its instructions, and the benchmark's tools."""

from __future__ import annotations

from functools import partial
from typing import Any

from mulligan import Agent, Tool, ToolContext, ToolError
from tests.exam.asked_database import call_tool, facts

ATTEMPTS_OF_READS = 20
"""A read may be repeated whenever its worker was killed."""


async def call(name: str, arguments: dict[str, Any], ctx: ToolContext) -> str:
    """Call a tool of the benchmark, on the database of this run."""
    text, failed = await call_tool(name, arguments, run=ctx.workflow_id, call=ctx.call_id, attempt=ctx.attempt)
    if failed:
        raise ToolError(text)
    return text


def declared(tool: dict[str, Any]) -> Tool:
    """A tool of the benchmark. One that writes has one attempt, and an equal call of the run is not executed."""
    options: Any = {"once": True} if tool["writes"] else {"attempts": ATTEMPTS_OF_READS}
    return Tool.from_schema(
        name=tool["name"],
        description=tool["description"],
        schema=tool["schema"],
        call=partial(call, tool["name"]),
        max_result_chars=100_000,
        **options,
    )


domain = facts()
clerk = Agent(
    name="clerk",
    model="openai-chat:exam",
    instructions=domain["policy"],
    tools=[declared(each) for each in domain["tools"]],
    max_steps=1_000,
    max_repeats=None,
)
