"""Whole runs whose first answer is a random stream of a careless server: the calls that were written run, each once, or none."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings

from mulligan import Agent, Tool, ToolContext
from mulligan.worker.loading import load_agents
from tests.support.chat_stream_writer import NAMES, WrittenStream, written_streams
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn

EXAMPLES = int(os.environ.get("CHAT_STREAM_RUNS", "40"))
"""Runs; more by hand: CHAT_STREAM_RUNS=2000."""
RAN: list[str] = []


def recording(name: str) -> Tool:
    """A tool that takes any arguments."""

    async def call(arguments: dict[str, Any], _ctx: ToolContext) -> str:
        RAN.append(json.dumps([name, arguments], sort_keys=True))
        return "ok"

    return Tool.from_schema(name=name, description=name, schema={"type": "object"}, call=call)


clerk = Agent(name="clerk", instructions="Be brief.", model="openai-chat:none", tools=[*map(recording, NAMES)])


@pytest.fixture(scope="module")
async def lab(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load_agents([clerk], [])) as at:
        yield at


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(written_streams())
async def test_a_run_executes_what_was_written_once_or_asks_again(lab: MemoryLab, written: WrittenStream) -> None:
    RAN.clear()
    first = iter([Turn(events=cast("Any", [*written.data]))])
    ran = await lab.run(lambda _body, nth: next(first, Turn("again")) if nth == 0 else Turn("done"), agent="clerk")
    if written.has_failed:
        assert RAN == []
        assert ran.error is not None or ran.result["output"] == "again"
        return
    assert ran.error is None
    assert sorted(RAN) == sorted(json.dumps([call.name, call.arguments], sort_keys=True) for call in written.calls)
    assert ran.result["output"] == (written.text if written.text.strip() and not written.calls else "done")
