"""The recovery matrix with all features on that change what a model is sent: they change nothing that follows a mistake.

Without a server: the matrix has one in tests/promise/test_recovery.py, and each feature in the live tests of its name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mulligan import ClearToolResults, CodeMode, Compaction, ProviderTool, Skills, Tool, ToolSearch, tool
from mulligan.worker.loading import load_agents
from tests.promise.recovery_matrix import Row, check
from tests.promise.test_recovery import ROWS
from tests.support.lab import Ran
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.shop_agents import now, shop

SLOW = ("a thread", "a coroutine", "a tool that", "retried", "huge", "megabytes")
ROWS_HERE = [row for row in ROWS if not row.name.startswith(SLOW)]


@tool(on_demand=True)
def count_stock(shelf: str) -> str:
    """Count what lies on a shelf."""
    return f"{shelf}: 3"


@tool
def open_door() -> str:
    """Open the door. Scripts call it."""
    return "open"


def conversation(steps: int, size: int) -> list[dict[str, Any]]:
    """A conversation of the day before: its results are old enough to be cleared, its steps to be summed up."""
    messages: list[dict[str, Any]] = [{"role": "user", "text": "Good morning."}]
    for number in range(steps):
        call = {"id": f"old{number}", "name": "now", "arguments": "{}"}
        messages.append({"role": "assistant", "text": "I look. " * (size // 40), "tool_calls": [call]})
        messages.append({"role": "tool", "call_id": call["id"], "name": "now", "text": "noon " * (size // 5)})
    return [*messages, {"role": "assistant", "text": "It is noon."}]


@pytest.fixture(scope="module")
async def featured(model: OpenAIServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MemoryLab]:
    skills: Path = tmp_path_factory.mktemp("skills")
    (skills / "greet").mkdir()
    (skills / "greet" / "SKILL.md").write_text("---\nname: greet\ndescription: How to greet.\n---\nBow.")
    tools: list[Tool | ProviderTool] = [
        *shop.listed_tools,
        open_door,
        count_stock,
        ProviderTool("openai", {"type": "web_search"}),
    ]
    features = [
        ToolSearch(limit=2),
        Skills(skills),
        CodeMode(tools=[open_door]),
        ClearToolResults(at=2_000, keep_steps=1),
    ]
    cleared = replace(shop, name="cleared", tools=tools, features=features)
    summed_up = replace(cleared, name="summed_up", features=[*features, Compaction(at=3_000, model="scripted:summary")])
    async with memory_lab(model, load_agents([cleared, summed_up], [])) as at:
        yield at


def tools_sent(ran: Ran) -> set[str]:
    return {str(each.get("name") or each["type"]) for each in ran.requests[0].json["tools"]}


@pytest.mark.parametrize("row", ROWS_HERE, ids=lambda row: row.name)
async def test_a_mistake_has_the_same_outcome_with_all_features_on(featured: MemoryLab, row: Row) -> None:
    """The first request has hosted and deferred tools, a skill, the script's tool and a cleared result."""
    ran = await check(featured, replace(row, agent="cleared"), "openai", messages=conversation(4, 4_000))
    assert tools_sent(ran) >= {"web_search", "tool_search", "count_stock", "read_skill", "run_code", now.name}
    assert b"noon noon" not in ran.requests[0].body


@pytest.mark.parametrize("row", ROWS_HERE, ids=lambda row: row.name)
async def test_a_mistake_after_a_summary_has_the_same_outcome(featured: MemoryLab, row: Row) -> None:
    ran = await check(featured, replace(row, agent="summed_up"), "openai", messages=conversation(12, 4_000))
    assert [bool(step.get("compaction")) for step in ran.steps] == [True] + [False] * (len(ran.steps) - 1)
