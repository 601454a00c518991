"""Tools on demand on a real server: strict endpoints accept the requests."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.live.conftest import DONE, Lab, call

QUERY, CITY = '{"query": "weather of a city"}', '{"city": "Oslo"}'


@pytest.fixture(scope="module")
async def town(lab: Lab) -> AsyncIterator[Lab]:
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"town-{uuid.uuid4().hex[:6]}")
    async with running_worker(at.client, load(["tests.support.tool_search_agents"]), lab.telemetry, at.task_queue):
        yield at


@pytest.mark.parametrize("api", ["openai", "openai-chat", "anthropic", "google"])
async def test_what_was_found_is_called(town: Lab, api: str) -> None:
    turns = [call("find_tools", QUERY, "f1"), call("get_weather", CITY, "c1"), DONE]
    ran = await town.run(turns, agent="guide", api=api)
    results = [each["result"]["text"] for each in ran.calls]
    assert results[0].startswith('[{"name": "get_weather"')
    assert results[1:] == ["Rain in Oslo."]
