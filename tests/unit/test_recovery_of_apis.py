"""The recovery matrix with the APIs of other providers, without a server; with one: tests/promise/test_recovery.py."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mulligan.worker.loading import load
from tests.promise.recovery_matrix import Row, check
from tests.promise.test_recovery import ROWS
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer

SAMPLE = ("empty name", "prose", "tool exception", "a fixer", "right and wrong side by side", "a bare value")


@pytest.fixture(scope="module")
async def lab(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load(["tests.support.shop_agents"])) as at:
        yield at


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_each_mistake_gets_one_result_and_one_error_span_and_the_run_completes(lab: MemoryLab, row: Row) -> None:
    if row.name.startswith(("a thread", "a coroutine", "a tool that", "retried", "no result")):
        pytest.skip("the same on either API, and slow")
    await check(lab, row, "openai")


@pytest.mark.parametrize("api", ["anthropic", "google"])
@pytest.mark.parametrize("row", [row for row in ROWS if row.name in SAMPLE], ids=lambda row: row.name)
async def test_other_providers_get_the_same_feedback(lab: MemoryLab, row: Row, api: str) -> None:
    """Each row of the matrix is in tests/system/features/test_recovery_providers.py."""
    await check(lab, row, api)
