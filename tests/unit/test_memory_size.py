"""The counted size of cached conversations compared with the memory that Python allocates for them."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter

from mulligan import AssistantMessage, ErrorInfo, Message, ToolCall, ToolMessage, UserMessage
from mulligan.activities.models.openai.openai_chat import OpenAIChat
from mulligan.activities.models.openai.openai_responses import OpenAIResponses
from mulligan.activities.models.scripted import Scripted
from mulligan.activities.run_data.conversation_cache import CachedConversation, ConversationCache

MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])
PROVIDERS: list[Any] = [Scripted({}), OpenAIChat(), OpenAIResponses()]


def result(n: int, text: str, error: ErrorInfo | None = None) -> ToolMessage:
    return ToolMessage(role="tool", call_id=f"call_{n:020d}", name="look", text=f"{n:05d}{text}", error=error)


def asks(n: int, calls: int, data: Any = None) -> AssistantMessage:
    arguments = f'{{"customer": "Ada {n}"}}'
    made = [ToolCall(id=f"call_{n:020d}_{index}", name="search_orders", arguments=arguments) for index in range(calls)]
    return AssistantMessage(role="assistant", tool_calls=made, provider_data=data)


def thinks(n: int) -> AssistantMessage:
    summary = [{"type": "summary_text", "text": f"A thought, {n} {part}."} for part in range(3)]
    item = {"type": "reasoning", "id": f"rs_{n:040d}", "summary": summary, "encrypted_content": f"{n:05d}" + "g" * 2000}
    return asks(n, 1, {"openai": [item, {"type": "function_call"}]})


SHAPES: dict[str, Callable[[int], Message]] = {
    "a word": lambda n: UserMessage(role="user", text=f"hi {n}"),
    "100 characters": lambda n: UserMessage(role="user", text=f"{n:05d}" + "x" * 95),
    "1 KB": lambda n: result(n, "x" * 1000),
    "1 KB, an error": lambda n: result(n, "x" * 1000, ErrorInfo(kind="tool_error", message=f"It broke, {n}.")),
    "32 KB": lambda n: result(n, "x" * 32_000),
    "Cyrillic": lambda n: result(n, "ж" * 1000),
    "Chinese": lambda n: result(n, "漢" * 1000),
    "one emoji": lambda n: result(n, "x" * 1000 + "😀"),
    "a call": lambda n: asks(n, 1),
    "twenty calls": lambda n: asks(n, 20),
    "reasoning": thinks,
}


def taken(make: Callable[[], Any]) -> tuple[Any, int]:
    """The created object, and the bytes that it allocated: the fewest of three times, as other threads allocate as well."""
    make()  # objects that are created once for the process
    tries: list[tuple[Any, int]] = []
    for _ in range(3):
        gc.collect()  # also empties Python's free lists, whose objects would be reused without being counted
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            made = make()
            tries.append((made, tracemalloc.get_traced_memory()[0] - before))
        finally:
            tracemalloc.stop()
    return min(tries, key=lambda each: each[1])


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: type(provider).__name__)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_counted_size_of_a_conversation_is_near_its_allocated_memory(shape: str, provider: Any) -> None:
    """At most a tenth more than counted, and not much less."""
    text = MESSAGES.dump_json([SHAPES[shape](n) for n in range(100)])

    def make() -> CachedConversation:
        prefix = CachedConversation(provider)
        prefix.extend(MESSAGES.validate_json(text))
        return prefix

    prefix, bytes_taken = taken(make)
    assert 0.8 * prefix.size < bytes_taken < 1.1 * prefix.size


@pytest.mark.parametrize("length", [10, 500, 50_000])
def test_the_counted_size_of_many_short_entries_is_near_their_allocated_memory(length: int) -> None:
    """Keys, lists and sets count too, for short conversations and for cached results that are never used."""

    def make() -> ConversationCache:
        cache = ConversationCache(10**9)
        for n in range(100):
            key = (f"a-workflow-with-quite-a-long-id-{n:020d}", "0")
            prefix = CachedConversation(PROVIDERS[1])
            prefix.extend([UserMessage(role="user", text=f"{n:05d}" + "x" * length), asks(n, 1)])
            cache.put(key, prefix)
            cache.put_result(key, result(n, "é" * length))
        return cache

    cache, bytes_taken = taken(make)
    assert 0.7 * cache.size < bytes_taken < 1.1 * cache.size
