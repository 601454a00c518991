"""Hundreds of random calls, with the strict scripted provider, without a server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from mulligan.worker.loading import load
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.random_calls import check_random_calls

SEEDS = int(os.environ.get("CALL_SEEDS", "6"))
"""Random runs; 200 for the longer form."""


@pytest.fixture(scope="module")
async def shop(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load(["tests.support.shop_agents"])) as at:
        yield at


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_each_random_call_gets_one_result_and_each_failure_one_error_span(shop: MemoryLab, seed: int) -> None:
    await check_random_calls(shop, seed)
