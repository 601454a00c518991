"""Repairs by a second model, and the feedback on repeated mistakes and empty answers; without a server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan.worker.loading import load
from tests.support.lab import DONE, call
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Failure, Turn
from tests.support.shop_agents import RAN

WRONG = '{"payment": {"to": "AT12345", "amount": 3}}'
RIGHT = '{"payment": {"iban": "AT12345", "amount": 3}}'


@pytest.fixture(scope="module")
async def lab(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load(["tests.support.shop_agents", "tests.support.structured_output_agents"])) as at:
        yield at


@pytest.mark.parametrize(
    ("answer", "mended"),
    [
        (Turn(calls=[("pay", RIGHT)]), True),
        (Turn(text=f"```json\n{RIGHT}\n```"), True),
        (Turn(text="null"), False),
        (Turn(text="I cannot tell."), False),
        (Turn(calls=[("pay", WRONG)]), False),
        (Turn(failure=Failure(400)), False),
        (Turn(failure=Failure(503)), False),
    ],
    ids=["a call", "a text", "null", "prose", "wrong again", "refused", "down"],
)
async def test_a_second_model_repairs_a_call_or_the_error_is_returned_to_the_model(
    lab: MemoryLab, answer: Turn, mended: bool
) -> None:
    """It is asked once; its answer is validated, its tokens are counted, its call is in the trace."""
    lab.model.script("mender", lambda request, nth: answer)
    before = len(lab.model.requests_of("mender"))
    ran = await lab.run([call("pay", WRONG), DONE], agent="mended_by_model")
    asked = lab.model.requests_of("mender")[before:]
    assert len(asked) == 1
    assert [tool["function"]["name"] for tool in asked[0].json["tools"]] == ["pay"]
    assert WRONG in asked[0].json["messages"][-1]["content"]
    assert "`payment.iban`: is required" in asked[0].json["messages"][-1]["content"]
    chats = [span for span in ran.spans_of("chat mender") if "mulligan.repaired_call.id" in span.attributes]
    assert len(chats) == 1
    [paid] = ran.calls
    if mended:
        assert [(repair["by"], repair["after"]) for repair in paid["repairs"]] == [("fix", json.loads(RIGHT))]
        assert RAN[ran.id] == [("pay", {"iban": "AT12345", "amount": 3.0})]
    else:
        assert (paid["result"]["error"]["kind"], RAN[ran.id]) == ("invalid_arguments", [])
    answered = answer.failure is None
    assert ran.result["usage"]["input_tokens"] == (30 if answered else 20)


async def test_the_repair_of_an_agent_may_ask_a_second_model(lab: MemoryLab) -> None:
    lab.model.script("mender", [Turn(calls=[("click", '{"selector": "#a"}')])])
    ran = await lab.run([call("click", "the button a"), DONE], agent="repaired_by_model")
    assert [repair["by"] for repair in ran.calls[0]["repairs"]] == ["repair"]
    assert RAN[ran.id] == [("click", {"selector": "#a"})]


async def test_feedback_on_a_repeated_mistake_says_more_each_time(lab: MemoryLab) -> None:
    """First it states the repetition with a valid example, then what was sent and what is accepted. max_steps is the limit."""
    ran = await lab.run([call("search_orders", '{"client": "Ada"}')] * 4 + [DONE], max_steps=9)
    texts = [each["result"]["text"] for each in ran.calls]
    assert "same call before" not in texts[0]
    assert "You made this same call before" in texts[1]
    example = json.loads(texts[1].partition("has the arguments: ")[2].splitlines()[0])
    assert set(example) == {"customer"}
    assert "This is the 3rd time" in texts[2]
    assert "You sent an object with `client`: string." in texts[2]
    assert "`customer`: string, required" in texts[2]
    assert "This is the 4th time" in texts[3]
    assert ran.result["recovered_failures"] == 4
    spans = ran.spans_of("ai.toolCall")
    assert all("Ada" not in str(span.attributes) for span in spans)
    other = await lab.run(
        [call("click", "{}"), call("click", '{"a": 1}'), call("clik"), call("clik", '{"x": 1}'), DONE]
    )
    texts = [each["result"]["text"] for each in other.calls]
    assert ["same call before" in text for text in texts] == [False, False, False, True]


async def test_the_example_arguments_in_the_feedback_are_valid(lab: MemoryLab) -> None:
    """A model that sends the example of the feedback succeeds."""

    def script(request: dict[str, Any], nth: int) -> Turn:
        if nth < 2:
            return call("pay", "{}")
        if nth == 2:
            text = request["messages"][-1]["content"]
            return call("pay", text.partition("has the arguments: ")[2].splitlines()[0])
        return DONE

    lab.model.script("mender", lambda request, nth: Turn(text="null"))
    ran = await lab.run(script, agent="mended_by_model")
    assert [each["result"]["error"] is None for each in ran.calls] == [False, False, True]


async def test_an_empty_answer_gets_feedback_once_and_a_second_one_ends_the_run(lab: MemoryLab) -> None:
    """A model that says nothing after the feedback has nothing to say."""
    ran = await lab.run([Turn(text=""), DONE])
    assert (ran.result["output"], ran.result["recovered_failures"]) == ("done", 1)
    assert ran.steps[0]["error"]["kind"] == "missing_output"
    [span] = ran.spans_of("ai.toolCall")
    assert (span.status, span.attributes["error.type"]) == ("ERROR", "missing_output")
    silent = await lab.run([Turn(text=""), Turn(text=" ")])
    assert (silent.result["status"], silent.result["steps"]) == ("completed", 2)


async def test_a_call_cut_off_by_a_content_filter_is_not_executed(lab: MemoryLab) -> None:
    """A call that was complete before is executed."""
    turn = Turn(calls=[("now", "{}", None), ("click", '{"selector": "#', None)], finish_reason="content_filter")
    ran = await lab.run([turn, DONE])
    assert [each["result"]["error"] and each["result"]["error"]["kind"] for each in ran.calls] == [
        None,
        "truncated_call",
    ]
    assert "a content filter" in ran.calls[1]["result"]["text"]
