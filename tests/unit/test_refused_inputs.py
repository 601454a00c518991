"""Inputs with which a run fails when it opens, by the worker's agents and limits; test_run_input.py has what is read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import zstandard

from mulligan import InvalidRunInputError
from mulligan.worker.loading import load
from tests.support.lab import DONE
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer

BAD: list[tuple[Any, str]] = [
    ({"agent": "shopp", "prompt": "x"}, 'Did you mean "shop"?'),
    ({"agent": "nobody", "prompt": "x"}, '"agent" is "nobody", but this worker serves no agent of that name'),
    ({"agent": "shop", "prompt": "x", "max_steps": 0}, '"max_steps" is 0, but it must be at least 1'),
    ({"agent": "shop", "prompt": "x", "maxSteps": "3"}, '"maxSteps" is "3"'),
    ({"agent": "shop", "promt": "x"}, '"promt" is not a known field; did you mean "prompt"?'),
    ({"agent": "shop"}, 'no "prompt" and no "messages"'),
    ({"agent": "shop", "prompt": "  "}, '"prompt" is empty'),
    ({"agent": "shop", "prompt": 5}, '"prompt" is 5, but it must be a string'),
    ({"prompt": "x"}, '"agent" is missing'),
    ({"agent": "shop", "prompt": "x", "model": "gpt-5"}, "it must be one of openai:NAME"),
    ({"agent": "shop", "prompt": "x", "traceparent": "00-1"}, "must be a W3C traceparent"),
    ({"agent": "shop", "messages": [{"role": "usr"}]}, '"messages[0]" needs a "role"'),
    (
        {"agent": "shop", "messages": [{"role": "tool", "call_id": "a", "name": "b", "text": "c"}]},
        "no call of that id is open",
    ),
    (
        {
            "agent": "shop",
            "prompt": "x",
            "messages": [{"role": "assistant", "tool_calls": [{"id": "a", "name": "b", "arguments": "{}"}]}],
        },
        "has no result",
    ),
    ({"agent": "shop", "messages": [{"role": "assistant", "text": "hi"}]}, "end with a user message"),
    ([], "must be one JSON object"),
    ("hello", "must be one JSON object"),
    (None, "without an input"),
    (b"\x00\xff", "input is not JSON"),
    (
        zstandard.compress(b'{"agent": "shop", "messages": [{"role": "user", "text": "' + b"x" * 2_500_000 + b'"}]}'),
        "without external storage the limit is 2,096,500",
    ),
    (
        {"agent": "shop", "prompt": "x", "metadata": {"k": "x" * 1_500_000}},
        "without external storage the limit is 1,200,000",
    ),
]


@pytest.fixture(scope="module")
async def shop(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load(["tests.support.shop_agents"])) as at:
        yield at


@pytest.mark.parametrize(("given", "says"), BAD, ids=[f"{index} {says[:40]}" for index, (_, says) in enumerate(BAD)])
async def test_invalid_input_fails_the_run_at_once_with_one_sentence(shop: MemoryLab, given: Any, says: str) -> None:
    """The error says what to change."""
    ran = await shop.run_input(given)
    assert isinstance(ran.error, InvalidRunInputError)
    assert says in ran.error.message
    assert (await ran.handle.query("progress"))["status"] == "failed"


async def test_messages_of_the_input_are_sent_before_the_prompt_with_legal_names(shop: MemoryLab) -> None:
    """The names and ids of a conversation from elsewhere may be illegal for the provider."""
    messages = [
        {"role": "user", "text": "one"},
        {
            "role": "assistant",
            "text": "",
            "tool_calls": [{"id": "an id!", "name": "a name!", "arguments": "not json"}],
        },
        {"role": "tool", "call_id": "an id!", "name": "a name!", "text": "two"},
    ]
    ran = await shop.run([DONE, DONE], messages=messages, prompt="three")
    sent = ran.requests[0].json["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "user"]
    assert sent[-1]["content"] == "three"
