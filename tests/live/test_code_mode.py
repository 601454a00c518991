"""Code mode: scripts of models, whose calls are tool calls of their own."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.live.conftest import DONE, Lab, Ran, call
from tests.support.code_agents import executions
from tests.support.openai_turn import Turn

MODULE = "tests.support.code_agents"


@pytest.fixture(scope="module")
async def lab_with_code(lab: Lab) -> AsyncIterator[Lab]:
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"code-{uuid.uuid4().hex[:6]}")
    async with running_worker(at.client, load([MODULE]), lab.telemetry, at.task_queue):
        yield at


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def script(code: str, call_id: str = "s") -> Turn:
    """A turn in which the model writes a script."""
    return call("run_code", json.dumps({"code": code}), call_id)


async def run(at: Lab, *scripts: str, agent: str = "coder", ledger: Path | None = None, **more: Any) -> Ran:
    """Run an agent that writes these scripts, one in each step."""
    turns = [script(each, f"s{n}") for n, each in enumerate(scripts)]
    metadata = {"ledger": str(ledger)} if ledger else {}
    return await at.run([*turns, DONE], agent=agent, metadata=metadata, **more)


def text_of(ran: Ran, number: int = 0) -> str:
    text: str = ran.calls[number]["result"]["text"]
    return text


async def test_each_call_of_a_script_is_a_tool_call(lab_with_code: Lab, ledger: Path) -> None:
    code = "total = 0.0\nfor n in range(1, 4):\n    order = await get_order(n)\n    total += order['total']\nprint('sum')\ntotal"
    ran = await run(lab_with_code, code, ledger=ledger)
    assert text_of(ran) == "sum\n60.0"
    [outer] = ran.calls
    assert [(each["id"], each["name"], each["arguments"]) for each in outer["calls"]] == [
        (f"s0.{n}", "get_order", {"id": n}) for n in (1, 2, 3)
    ]
    assert [each["result"]["text"] for each in outer["calls"]][0] == '{"id": 1, "total": 10.0}'
    assert [each["call_id"] for each in executions(ledger)] == ["s0.1", "s0.2", "s0.3"]
    assert len({each["key"] for each in executions(ledger)}) == 3
    assert (ran.result["tool_calls"], ran.result["recovered_failures"], ran.result["steps"]) == (4, 0, 2)
    [outer_span] = [each for each in ran.spans_of("ai.toolCall") if each.attributes["gen_ai.tool.name"] == "run_code"]
    inner = [each for each in ran.spans_of("ai.toolCall") if each is not outer_span]
    assert [each.parent_id for each in inner] == [outer_span.span_id] * 3
    tools = [each["function"]["name"] for each in ran.requests[0].body["tools"]]
    assert tools == ["run_code"]
