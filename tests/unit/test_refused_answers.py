"""Answers that the endpoint itself refuses: a mistake of the model, which it is told; nothing of them is run."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from mulligan import Agent, tool
from mulligan.worker.loading import load_agents
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Failure, Turn
from tests.support.zoo import groq, llama_cpp, ollama

PAID: list[int] = []


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    PAID.append(amount)
    return "paid"


clerk = Agent(name="clerk", tools=[pay], model="openai-chat:none", max_steps=4)


@pytest.fixture(scope="module")
async def lab(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load_agents([clerk], [])) as at:
        yield at


CALL = '<function=pay>{"amount": 5}</function>'
FAILED = "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details."
SCHEMA = (
    "tool call validation failed: parameters for tool pay did not match schema: errors: [`/amount`: expected integer]"
)
GONE = "tool call validation failed: attempted to call tool 'paye' which was not in request.tools"
WITH_A_CALL = [
    ("groq", 400, groq.judges(FAILED, CALL), "invalid_json"),
    ("groq's schema", 400, groq.judges(SCHEMA, '[{"name": "pay", "parameters": {"amount": 5}}]'), "invalid_arguments"),
    ("groq's tools", 400, groq.judges(GONE, '{"name": "paye", "arguments": {"amount": 5}}'), "unknown_tool"),
]
IN_WORDS = [
    ("groq, without the call", 400, {"error": {"message": SCHEMA, "code": "tool_use_failed"}}, "did not match schema"),
    (
        "ollama",
        500,
        ollama.says("error parsing tool call: raw='{\"amount\": 5', err=unexpected end of JSON", 500),
        "raw=",
    ),
    ("llama.cpp", 500, llama_cpp.says("Failed to parse input at pos 12: <tool_call>{</tool_call>", 500), "at pos 12"),
]


@pytest.mark.parametrize(
    ("status", "body", "kind"), [row[1:] for row in WITH_A_CALL], ids=[row[0] for row in WITH_A_CALL]
)
async def test_a_call_that_the_endpoint_refuses_gets_its_words_as_result(
    lab: MemoryLab, status: int, body: Mapping[str, Any], kind: str
) -> None:
    PAID.clear()
    refused = Turn(failure=Failure(status=status, body=body))
    ran = await lab.run([refused, Turn(calls=[("pay", '{"amount": 7}')]), Turn("done")], agent="clerk")
    assert (ran.error, ran.result["output"], ran.result["recovered_failures"]) == (None, "done", 1)
    assert PAID == [7]
    first = ran.calls[0]
    assert (first["result"]["error"]["kind"], len(ran.requests)) == (kind, 3)
    assert body["error"]["message"] in first["result"]["text"]
    assert any(body["error"]["message"] in str(each["content"]) for each in ran.requests[1].conversation)


@pytest.mark.parametrize(("status", "body", "told"), [row[1:] for row in IN_WORDS], ids=[row[0] for row in IN_WORDS])
async def test_what_names_no_call_is_told_as_a_message(
    lab: MemoryLab, status: int, body: Mapping[str, Any], told: str
) -> None:
    PAID.clear()
    ran = await lab.run([Turn(failure=Failure(status=status, body=body)), Turn("done")], agent="clerk")
    assert (ran.error, ran.result["output"], ran.result["recovered_failures"], PAID) == (None, "done", 1, [])
    assert (len(ran.rejected), len(ran.requests)) == (1, 2)
    assert told in ran.rejected[0]


async def test_a_refusal_within_a_stream_is_told_too(lab: MemoryLab) -> None:
    PAID.clear()
    events = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}, groq.judges(FAILED, CALL)]
    ran = await lab.run([Turn(events=events), Turn("done")], agent="clerk")
    assert (ran.error, ran.result["output"], ran.result["recovered_failures"], PAID) == (None, "done", 1, [])


async def test_such_answers_count_as_steps(lab: MemoryLab) -> None:
    """A model that writes nothing else ends its run by `max_steps` or `max_repeats`, and not by an hour of retries."""
    refused = Turn(failure=Failure(status=400, body=groq.judges(FAILED, CALL)))
    ran = await lab.run([refused] * 4, agent="clerk")
    assert ran.error is None
    assert ran.result["status"] in ("max_steps", "max_repeats")
    assert ran.result["recovered_failures"] == ran.result["steps"] == len(ran.requests)


async def test_another_refusal_of_a_request_is_none_of_the_models(lab: MemoryLab) -> None:
    body = {"error": {"message": "Invalid value for 'tools'.", "code": "invalid_value"}}
    ran = await lab.run([Turn(failure=Failure(status=400, body=body))], agent="clerk")
    assert ran.error is not None
    assert "Invalid value for 'tools'." in ran.error.message
    assert len(json.dumps(ran.steps)) == 2
