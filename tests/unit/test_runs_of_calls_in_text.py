"""Models without native tool calls: JSON in their text is a call and is handled like any other; prose never is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mulligan.worker.loading import load
from tests.support.lab import DONE
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn
from tests.support.shop_agents import RAN

FENCED = 'I look.\n```json\n{"action": "click", "action_input": {"selector": "#a"}}\n```'


@pytest.fixture(scope="module")
async def lab(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load(["tests.support.shop_agents", "tests.support.structured_output_agents"])) as at:
        yield at


@pytest.mark.parametrize(
    ("text", "kinds", "ran_with", "rest", "repairs"),
    [
        (FENCED, [None], ["#a"], "I look.", 0),
        ('{"name": "click", "arguments": {"selector": "#a"}}', [None], ["#a"], "", 0),
        ('```json\n{"name": "click", "arguments": {"element": "#a"}}\n```', [None], ["#a"], "", 1),
        ("```\n{'name': 'click', 'arguments': {'selector': '#a',}}\n```", [None], ["#a"], "", 1),
        ('```json\n{"name": "clik", "arguments": {}}\n```', ["unknown_tool"], [], "", 0),
        ("{'name': 'clik', 'arguments': {'selector': '#a',}}", ["unknown_tool"], [], "", 0),
        ('<tool_call>[clik(selector="#a")]</tool_call>', ["unknown_tool"], [], "", 0),
        ("<function=clik><parameter=selector>#a</parameter></function>", ["unknown_tool"], [], "", 0),
        ("<function=Click><parameter=selector>#a</parameter></function>", [None], ["#a"], "", 1),
        ("click(selector='#a')", [None], ["#a"], "", 1),
        ('<tool_call>{"name": "click", "arguments": {}}</tool_call>', ["invalid_arguments"], [], "", 0),
    ],
    ids=[
        "langchain",
        "bare",
        "fixed",
        "mended",
        "unknown",
        "unknown, broken",
        "unknown, Python",
        "unknown, tags",
        "near, tags",
        "Python",
        "invalid",
    ],
)
async def test_json_in_the_text_of_an_answer_is_run_as_a_tool_call(
    lab: MemoryLab, text: str, kinds: list[str | None], ran_with: list[str], rest: str, repairs: int
) -> None:
    ran = await lab.run([Turn(text=text), DONE], agent="wordy")
    assert (ran.result["status"], ran.result["output"]) == ("completed", "done")
    assert [each["result"]["error"] and each["result"]["error"]["kind"] for each in ran.calls] == kinds
    assert [arguments["selector"] for _, arguments in RAN[ran.id]] == ran_with
    assert (ran.steps[0]["text"], ran.result["repairs"]) == (rest, repairs)
    assert "click" in ran.requests[0].json["messages"][0]["content"]
    assert len(ran.spans_of("ai.toolCall")) == 1


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        ("wordy", "I would call click with the selector #a."),
        ("wordy", 'The customer is:\n```json\n{"name": "Ada", "age": 36}\n```'),
        ("shop", FENCED),
    ],
    ids=["prose", "data", "off by default"],
)
async def test_prose_and_data_in_the_text_are_not_run_as_calls(lab: MemoryLab, agent: str, text: str) -> None:
    ran = await lab.run([Turn(text=text)], agent=agent)
    assert (ran.result["output"], ran.calls) == (text, [])
