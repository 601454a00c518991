"""The benchmark's agents, as a user would write them: `uv run mulligan worker --load benchmarks.agents`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from benchmarks.passage import A_DAY, HOLD, passage
from mulligan import Agent, Call, Message, Say, Script, tool


@tool(timeout=A_DAY)
async def look(number: int) -> str:
    """Give 1 KB."""
    if number == HOLD:
        await asyncio.sleep(A_DAY)
    return passage(number)


@tool(name="look", local=True)
async def look_locally(number: int) -> str:
    """Give 1 KB."""
    return passage(number)


def turn(messages: Sequence[Message]) -> Say:
    """The answers of the endpoint, without HTTP."""
    orders = re.search(r"\[steps:(\d+) ", messages[0].text)
    said = sum(message.role == "assistant" for message in messages)
    return Say(calls=[Call("look", {"number": said})]) if orders and said < int(orders[1]) else Say("Done.")


bench = Agent(name="bench", model="openai:bench", tools=[look], max_steps=1_000_000)
bench_local = Agent(name="bench-local", model="openai:bench", tools=[look_locally], max_steps=1_000_000)
script = Script("bench", [turn])
