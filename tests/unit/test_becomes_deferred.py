"""A deploy makes a tool deferred, or not any more, while its call waits for a person: the call ends by the tool of today."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan import Agent, Tool, tool
from mulligan.worker.loading import load_agents
from tests.promise.test_people import pending
from tests.support.lab import DONE, call
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer


def act(**options: Any) -> Tool:
    @tool(needs_approval=True, **options)
    def act(n: int) -> str:
        """Act."""
        return f"started {n}"

    return act


NOW, LATER = act(), act(deferred=True, deferred_timeout=4)


def agent(of: Tool) -> Agent:
    return Agent(name="shop", model="openai-chat:any", tools=[of])


@pytest.fixture
async def shop(model: OpenAIServer, request: pytest.FixtureRequest) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load_agents([agent(request.param)], [])) as at:
        yield at


async def approved(shop: MemoryLab, of: Tool) -> Any:
    """A run whose call was approved after the deploy of another tool."""
    handle = await shop.start([call("act", '{"n": 1}', "c1"), DONE])
    assert [each["call_id"] for each in await pending(handle)] == ["c1"]
    shop.loaded.registry.agents["shop"] = agent(of)
    await handle.execute_update("decide", {"call_id": "c1", "decision": "approve"})
    return handle


@pytest.mark.parametrize("shop", [NOW], indirect=True)
async def test_a_call_whose_tool_has_become_deferred_is_waited_for(shop: MemoryLab) -> None:
    handle = await approved(shop, LATER)
    while not (await handle.query("progress"))["waiting_for"]:
        await asyncio.sleep(0.02)
    await handle.execute_update("complete", {"call_id": "c1", "result": "the real result"})
    ran = await shop.look(handle)
    assert (ran.calls[0]["result"]["text"], ran.result["recovered_failures"]) == ("the real result", 0)


@pytest.mark.parametrize("shop", [NOW], indirect=True)
async def test_it_waits_as_long_as_the_tool_of_today_says(shop: MemoryLab) -> None:
    handle = await approved(shop, LATER)
    handle.run.passes_time = True
    ran = await shop.look(handle)
    assert "its result did not come within 4 s" in ran.calls[0]["result"]["text"]


@pytest.mark.parametrize("shop", [LATER], indirect=True)
async def test_a_call_whose_tool_is_deferred_no_more_has_the_result_of_its_body(shop: MemoryLab) -> None:
    handle = await approved(shop, NOW)
    ran = await shop.look(handle)
    assert ran.calls[0]["result"]["text"] == "started 1"
