"""The module of a worker on another task queue: tools without their agents, and other resources."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mulligan import ToolContext, ToolError, tool
from tests.support.shop_agents import RAN


@asynccontextmanager
async def resources() -> AsyncIterator[str]:
    yield "a GPU"


@tool
async def embed(text: str, ctx: ToolContext) -> list[int]:
    """Embed a text."""
    RAN[ctx.workflow_id].append(("embed", {"text": text, "with": ctx.resources, "agent": ctx.agent}))
    if text == "refuse":
        raise ToolError("The GPU is hot.")
    if text == "break":
        raise ZeroDivisionError("by zero")
    return [len(text)]
