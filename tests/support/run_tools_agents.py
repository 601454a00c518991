"""Agents whose tools a function returns for each run. `LISTED` are the inputs that it got, `STATE` what it does now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mulligan import Agent, RunInput, Tool, ToolContext
from tests.support.shop_agents import RAN

LISTED: dict[str, list[RunInput]] = defaultdict(list)
"""By the run's `metadata["key"]`."""
STATE: dict[str, str] = {}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


async def work(arguments: dict[str, Any], ctx: ToolContext) -> str:
    """Note the call."""
    RAN[ctx.workflow_id].append((arguments, ctx.tenant, ctx.user))
    return f"worked for {ctx.user}"


def made(name: str, **options: Any) -> Tool:
    return Tool.from_schema(name=name, description="Work.", schema=SCHEMA, call=work, **options)


async def list_tools(run_input: RunInput) -> list[Tool]:
    """The tools that the run's metadata names, but for those that are gone by now."""
    key = run_input.metadata["key"]
    LISTED[key].append(run_input)
    if STATE.get(key) == "broken":
        raise ConnectionError("the list is away")
    names = [name for name in run_input.metadata["tools"].split() if name != STATE.get(key)]
    return [made(name, needs_approval=name == "asked", local=name == "near") for name in names]


async def tools_by_context(run_input: RunInput, ctx: ToolContext) -> list[Tool]:
    name = f"{ctx.resources}_{ctx.user}_{run_input.metadata['key']}"
    strict = {**SCHEMA, "required": ["n"], "additionalProperties": False}
    return [Tool.from_schema(name=name, description="Work.", schema=strict, call=work, strict=True)]


def greet(run_input: RunInput, ctx: ToolContext) -> str:
    return f"Greet {ctx.user} of {ctx.tenant} with {ctx.resources}; {ctx.agent} {ctx.call_id!r} {ctx.workflow_id}"


@asynccontextmanager
async def resources() -> AsyncIterator[str]:
    yield "pool"


informed = Agent(name="informed", model="openai:x", instructions=greet, tools=tools_by_context)
clinic = Agent(name="clinic", model="openai:x", tools=list_tools)
boss = Agent(name="boss", model="openai:x", tools=[clinic.as_tool(description="Asks the clinic.")])
