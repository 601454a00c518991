"""Endpoints that count no tokens: they are estimated, marked so, and count for limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan import Agent, tool
from mulligan.values import Usage
from mulligan.worker.loading import load_agents
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn
from tests.support.openai_turn import Usage as Counted


@tool
def more(n: int) -> str:
    """More."""
    return f"{n} " * 10_000


OPTIONS: dict[str, Any] = {"tools": [more], "model": "openai-chat:none", "max_steps": 12}
bounded = Agent(name="bounded", max_total_tokens=30_000, **OPTIONS)


@pytest.fixture(scope="module")
async def lab(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load_agents([bounded], [])) as at:
        yield at


@pytest.mark.parametrize("counted", [None, Counted(0, 0)], ids=["nothing", "zeros"])
async def test_what_an_endpoint_does_not_count_is_estimated_and_ends_the_run(
    lab: MemoryLab, counted: Counted | None
) -> None:
    turns = [Turn("x" * 400, calls=[("more", f'{{"n": {n}}}')], usage=counted) for n in range(12)]
    ran = await lab.run(turns, agent="bounded")
    assert (ran.error, ran.result["status"]) == (None, "max_tokens")
    assert ran.result["usage"]["estimated"] is True
    assert ran.steps[0]["usage"]["output_tokens"] >= 100
    assert ran.steps[1]["usage"]["input_tokens"] >= 5_000
    assert ran.result["usage"]["input_tokens"] < 60_000


async def test_what_an_endpoint_counts_is_no_estimate(lab: MemoryLab) -> None:
    ran = await lab.run([Turn("done", usage=Counted(7, 3))], agent="bounded")
    assert ran.result["usage"]["input_tokens"] == 7
    assert "estimated" not in ran.result["usage"]


def test_a_sum_with_an_estimate_is_one() -> None:
    assert (Usage(input_tokens=1) + Usage(input_tokens=2, estimated=True)).estimated
    assert not (Usage(input_tokens=1) + Usage(input_tokens=2)).estimated
    assert (Usage(input_tokens=3, estimated=True) - Usage(input_tokens=2)) == Usage(input_tokens=1, estimated=True)
