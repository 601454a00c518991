"""Agents whose tools are on other task queues: this module only declares the tools."""

from __future__ import annotations

from mulligan import Agent, tool
from tests.support.shop_agents import now

MODEL = "openai-chat:nobody"


@tool(task_queue="gpu")
async def embed(text: str) -> list[int]:
    """Embed a text."""
    raise NotImplementedError("its code is on another worker")


@tool(task_queue="gpu")
async def not_deployed() -> str:
    """What nobody has deployed yet."""
    raise NotImplementedError("its code is on another worker")


@tool(task_queue="nobody-is-here", queue_timeout=0.5)
async def deserted() -> str:
    """A tool whose worker is gone."""
    raise NotImplementedError("its code is on another worker")


far = Agent(name="far", model=MODEL, tools=[embed, not_deployed, deserted, now])
far_strict = Agent(name="far_strict", model=MODEL, tools=[embed], handle_errors=False)
far_picky = Agent(name="far_picky", model=MODEL, tools=[embed], handle_errors=ArithmeticError)
