"""A conversation that the endpoint refuses as too long: how endpoints say it, and what `Compaction` does then."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from mulligan import Agent, Compaction, ModelRequestError, tool
from mulligan.activities.models._http_errors import tells_overflow
from mulligan.errors import from_json
from mulligan.worker.loading import load_agents
from tests.support.lab import DONE, call
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Failure, Turn

TOO_LONG = Turn(
    failure=Failure(
        status=400,
        body={
            "error": {
                "message": "This model's maximum context length is 15000 tokens. However, your messages resulted in 16000.",
                "type": "invalid_request_error",
                "param": "messages",
                "code": "context_length_exceeded",
            }
        },
    )
)
SUMMARY = Turn(text="Pages were read.")
MOST_CHARS = 20_000
"""Characters of messages that the endpoint takes: about five pages."""


def reads(pages: int, most: int = MOST_CHARS, *, most_after: int | None = None) -> Callable[[Any, int], Turn]:
    """An endpoint that takes so much, and looks at so many pages. `most_after`: what it takes once it has summed up."""
    left, sizes = iter(range(pages)), [most]

    def answer(body: Any, nth: int) -> Turn:
        del nth
        if len(json.dumps(body["messages"])) > sizes[-1]:
            return TOO_LONG
        if not body.get("tools"):
            sizes.append(most if most_after is None else most_after)
            return SUMMARY
        n = next(left, None)
        return DONE if n is None else call("look", json.dumps({"n": n}), f"c{n}")

    return answer


@tool
def look(n: int) -> str:
    """Look at a page."""
    return f"{n}: " + "word " * 800


@pytest.fixture(scope="module")
async def lab(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    agents = [
        Agent(name="shop", model="openai-chat:x", tools=[look], features=[Compaction(at=500_000)]),
        Agent(name="plain", model="openai-chat:x", tools=[look]),
    ]
    async with memory_lab(model, load_agents(agents, [])) as at:
        yield at


async def test_the_older_part_is_summed_up_and_the_model_is_called_once_more(lab: MemoryLab) -> None:
    ran = await lab.run(reads(6))
    assert (ran.error, ran.result["status"], ran.result["steps"]) == (None, "completed", 7)
    assert [call["arguments"] for call in ran.calls] == [{"n": n} for n in range(6)]
    [compaction] = [step["compaction"] for step in ran.steps if step.get("compaction")]
    assert (compaction["text"], compaction["messages"] > 4) == ("Pages were read.", True)


async def test_a_second_refusal_ends_the_run_with_a_sentence(lab: MemoryLab) -> None:
    ran = await lab.run(reads(6, most_after=10))
    assert isinstance(ran.error, ModelRequestError)
    assert ran.error.message.endswith("It was summed up, and what is left is too long as well.")
    assert ["tools" in each.json for each in ran.requests[-3:]] == [True, False, True]


async def test_later_steps_may_overflow_again(lab: MemoryLab) -> None:
    ran = await lab.run(reads(20), max_steps=30)
    assert (ran.error, len(ran.calls)) == (None, 20)
    assert sum(step.get("compaction") is not None for step in ran.steps) >= 2


async def test_where_nothing_can_be_summed_up_the_run_fails_with_a_sentence(lab: MemoryLab) -> None:
    ran = await lab.run(reads(6, most=10))
    assert ran.error is not None
    assert ran.error.message.endswith("There is nothing to sum up: the request and the newest step are most of it.")
    assert len(ran.requests) == 1


async def test_a_run_that_begins_with_a_conversation_that_is_too_long_goes_on(lab: MemoryLab) -> None:
    long = [
        each
        for n in range(6)
        for each in ({"role": "user", "text": f"Page {n}?"}, {"role": "assistant", "text": "word " * 800})
    ]
    ran = await lab.run(reads(0), prompt=None, messages=[*long, {"role": "user", "text": "And now?"}])
    assert (ran.error, ran.steps[0]["compaction"]["text"]) == (None, "Pages were read.")


async def test_an_agent_without_the_feature_is_told_of_it(lab: MemoryLab) -> None:
    ran = await lab.run(reads(6), agent="plain")
    assert isinstance(ran.error, ModelRequestError)
    assert "the feature `Compaction` sums up its older part" in ran.error.message
    assert ran.error.is_overflow


def test_the_error_says_so_to_other_processes_and_nothing_where_it_is_none() -> None:
    said = ModelRequestError("x", status=400, is_overflow=True).to_json()
    assert getattr(from_json(said), "is_overflow") is True  # noqa: B009 - of any error
    assert ModelRequestError("x", status=400).to_json()["fields"] == {"status": 400, "request_id": None}


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."),
        (400, "Your input exceeds the context window of this model. (context_length_exceeded)"),
        (400, "prompt is too long: 210000 tokens > 200000 maximum"),
        (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
        (400, "Input is too long for requested model."),
        (400, "Prompt contains 65673 tokens and 0 draft tokens, too large for model with 32768 maximum context length"),
        (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
        (400, "Invalid request: Your request exceeded model token limit: 8192"),
        (400, "invalid params, context window exceeds limit (2013)"),
        (400, "Prompt exceeds max length (1261)"),
        (400, "the request exceeds the available context size, try increasing it"),
        (400, "The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
        (400, "litellm.ContextWindowExceededError: AnthropicException"),
        (413, "prompt is too long"),
    ],
)
def test_endpoints_say_it_in_many_words(status: int, message: str) -> None:
    assert tells_overflow(status, message)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "max_tokens is too large: 100000. This model supports at most 16384 completion tokens."),
        (413, "Request too large for model x on tokens per minute (TPM): Limit 6000, Requested 9000"),
        (400, "Invalid schema for function 'look'"),
        (401, "prompt is too long"),
        (400, "The context is missing a field"),
    ],
)
def test_other_refusals_are_none(status: int, message: str) -> None:
    assert not tells_overflow(status, message)
