"""Agents and a workflow whose exceptions quote what they were given, wherever users' code can raise one."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow

from mulligan import Agent, DurableAgent, RunInput, ToolCall, ToolContext, tool


def instructions(info: RunInput) -> str:
    """Fail for runs that ask for it."""
    if secret := info.metadata.get("unopened"):
        raise ValueError(f"no instructions for {secret}")
    return "You quote."


@tool
def quote(text: str) -> str:
    """Quote the arguments in an exception."""
    raise LookupError(f"there is no {text}")


@tool
def repeat(text: str) -> str:
    """Return the arguments."""
    return text


def guard(call: ToolCall, ctx: ToolContext) -> str | None:
    """Fail where the arguments say so."""
    if "guarded" in call.arguments:
        raise RuntimeError(f"cannot judge {call.arguments}")
    return None


quoter = Agent(name="quoter", model="openai-chat:nobody", instructions=instructions, tools=[quote, repeat], guard=guard)


@workflow.defn
class QuotingWorkflow:
    """Fails its workflow task as long as it is open, and a task that nobody waits for."""

    @workflow.run
    async def run(self, secret: str) -> Any:
        DurableAgent("quoter")

        async def forgotten() -> None:
            raise KeyError(f"forgotten {secret}")

        task = asyncio.create_task(forgotten())
        await workflow.wait_condition(task.done)
        del task
        raise RuntimeError(f"a bug with {secret}")
