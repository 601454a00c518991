"""Models without native tool calls: JSON in their text is a call and is handled like any other; prose never is."""

from __future__ import annotations

import pytest

from tests.live.conftest import DONE, Lab
from tests.support.openai_turn import Failure, Turn
from tests.support.shop_agents import RAN

FENCED = 'I look.\n```json\n{"action": "click", "action_input": {"selector": "#a"}}\n```'


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
    lab: Lab, text: str, kinds: list[str | None], ran_with: list[str], rest: str, repairs: int
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
async def test_prose_and_data_in_the_text_are_not_run_as_calls(lab: Lab, agent: str, text: str) -> None:
    ran = await lab.run([Turn(text=text)], agent=agent)
    assert (ran.result["output"], ran.calls) == (text, [])


async def test_a_server_that_rejects_tools_gets_calls_and_results_as_text(lab: Lab) -> None:
    """The request is repeated in text at once, as are all later ones: calls as they were written, results as user messages."""

    def script(request: dict[str, object], nth: int) -> Turn:
        if "tools" in request:
            return Turn(failure=Failure(400, {"error": {"message": "this model does not support tools"}}))
        return [Turn(text=FENCED), DONE][nth]

    ran = await lab.run(script, agent="wordy")
    assert (ran.result["output"], ran.result["steps"], len(RAN[ran.id])) == ("done", 2, 1)
    assert [request.status for request in ran.requests] == [400, 200, 200]
    system, prompt, said, result = ran.requests[-1].json["messages"]
    assert (system["role"], prompt["content"]) == ("system", "Go.")
    assert '"name": "click", "arguments": {"selector": "#a"}' in said["content"]
    assert (result["role"], result["content"]) == ("user", "Result of click:\nclicked #a")
