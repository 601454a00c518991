"""A conversation that changes its provider in the middle: each gets its own reasoning back, and nothing of another's."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan.values import ErrorInfo, Message, Usage, UserMessage
from tests.support.openai_server import Reasoning, Turn
from tests.support.provider_fixtures import GO, Bench, assistant_message, result

PROVIDERS = ["openai", "openai-chat", "anthropic", "google"]
THOUGHTS = {name: f"thought of {name}." for name in PROVIDERS}
PRIVATE = {
    "openai": "encrypted_content",
    "openai-chat": "reasoning_content",
    "anthropic": "signature",
    "google": "thoughtSignature",
}
"""The field that only this provider understands."""
THINKS = {"anthropic": {"thinking": {"type": "enabled", "budget_tokens": 1_024}}}


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Bench.open(monkeypatch) as bench:
        bench.server.takes_reasoning_content = True
        yield bench
        assert bench.server.refusals == []


def turn_of(provider: str, nth: int) -> Turn:
    """An answer with reasoning and two parallel calls, one of them of a tool that does not exist."""
    calls = [("search", f'{{"q": {nth}}}', f"call_{nth}_a"), ("no such", "{}", f"call_{nth}_b")]
    return Turn("Let me see.", calls=calls, reasoning=[Reasoning([THOUGHTS[provider]])])


async def step(bench: Bench, provider: str, nth: int, messages: list[Message]) -> list[Message]:
    """The messages after one more step, which this provider's model answered."""
    bench.server.script("m", lambda body, n: turn_of(provider, nth))
    reply = await bench.ask(provider, messages, settings=THINKS)
    data: dict[str, Any] = {"openai-chat": {"reasoning_content": THOUGHTS[provider]}}
    if provider != "openai-chat":  # only compatible servers send it
        assert reply.provider_data is not None
        data = reply.provider_data
    assert list(data) == [provider]
    failed = result(f"call_{nth}_b", "There is no such tool.")
    failed.name, failed.error = "no such", ErrorInfo(kind="unknown_tool", message="There is no such tool.")
    answer = assistant_message(reply.text, *reply.calls, data=data)
    return [*messages, answer, result(f"call_{nth}_a"), failed]


def sent_private(bench: Bench) -> dict[str, int]:
    """How often each provider's own field is in the newest request."""
    body = json.dumps(bench.sent)
    return {name: body.count(f'"{field}"') for name, field in PRIVATE.items()}


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(PROVIDERS, 2)))
async def test_what_only_one_provider_understands_is_kept_for_it_and_left_out_for_the_other(
    bench: Bench, first: str, second: str
) -> None:
    """First, second, a person's message, then the first again: the strict server accepts each request."""
    messages = await step(bench, first, 1, [GO])
    messages = await step(bench, second, 2, messages)
    sent = bench.sent
    assert THOUGHTS[first] not in json.dumps(sent)
    own = sent_private(bench)
    if second == "google":  # calls of another provider have the value that Google documents for them
        assert json.dumps(sent).count("skip_thought_signature_validator") == own.pop("google") == 1
    assert not any(own.values())
    messages = [*messages, UserMessage(role="user", text="Hurry up.")]
    messages = await step(bench, first, 3, messages)
    assert THOUGHTS[second] not in json.dumps(bench.sent)
    is_kept = json.dumps(bench.sent)
    if first == "google":
        assert is_kept.count('"thoughtSignature": "sig') == 1
    elif first == "openai-chat":
        assert THOUGHTS[first] in is_kept
    else:
        assert sent_private(bench)[first] == 1


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_after_a_compaction_the_conversation_is_accepted(bench: Bench, provider: str) -> None:
    """The summary is a user's message, with messages of people and answers of any provider after it."""
    summary = UserMessage(role="user", text="[Summary] It was asked for ham.")
    others = [name for name in PROVIDERS if name != provider]
    messages: list[Message] = [summary, UserMessage(role="user", text="And cheese.")]
    for nth, other in enumerate((*others, provider), 1):
        messages = await step(bench, other, nth, messages)
    bench.server.script("m", lambda body, n: Turn("Done.", usage=None))
    reply = await bench.ask(provider, messages, settings=THINKS)
    assert (reply.text, reply.usage) == ("Done.", Usage())
