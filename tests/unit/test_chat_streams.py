"""Chat Completions streams of careless servers: the calls that were written, each once, or a failed attempt."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from time import process_time
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings

from mulligan.activities.models._read_response import read_stream
from mulligan.activities.models.openai._chat_assembler import ChatAssembler
from mulligan.activities.models.openai.openai_chat import _reply
from mulligan.activities.models.protocol import Reply, Unavailable
from mulligan.errors import ModelRequestError
from tests.support.chat_stream_writer import WrittenStream, written_streams

EXAMPLES = int(os.environ.get("CHAT_STREAMS", "200"))
"""Streams of a test run; more by hand: CHAT_STREAMS=20000."""


async def read(data: tuple[bytes, ...], live: list[str]) -> Reply:
    async def stream() -> AsyncIterator[bytes]:
        for piece in data:
            yield piece

    response = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream())
    return _reply(await read_stream(response, ChatAssembler(live.append)))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(written_streams())
async def test_a_random_stream_is_the_calls_that_were_written_or_a_failed_attempt(written: WrittenStream) -> None:
    live: list[str] = []
    if written.has_failed:
        with pytest.raises((Unavailable, ModelRequestError)):
            await read(written.data, live)
        return
    reply = await read(written.data, live)
    assert reply.text == written.text
    calls = [json.dumps([call.name, json.loads(call.arguments)]) for call in reply.calls]
    assert sorted(calls) == sorted(json.dumps([call.name, call.arguments]) for call in written.calls)
    assert written.text.startswith("".join(live))


def _chunk(*calls: dict[str, Any], finish: str | None = None) -> bytes:
    delta = {"role": "assistant", "content": "", "tool_calls": list(calls)}
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}]})}\n\n".encode()


def _call(index: int, call_id: str | None, *, arguments: str, name: str | None = "pay") -> dict[str, Any]:
    return {"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("arguments", ["{}", '{"amount": 5}'])
async def test_equal_calls_that_are_counted_on_are_two(arguments: str) -> None:
    """As Ollama and Gemini's compatible endpoint write them: each whole, in a chunk like a message."""
    first = _chunk(_call(0, "a", arguments=arguments))
    reply = await read((first, _chunk(_call(1, "b", arguments=arguments), finish="tool_calls")), [])
    assert [call.id for call in reply.calls] == ["a", "b"]
    again = await read((first, _chunk(_call(0, "b", arguments=arguments), finish="tool_calls")), [])
    assert [call.id for call in again.calls] == ["a"]


@pytest.mark.parametrize(
    ("reason", "ends"), [("skill_stop", "stop"), ("MAX_OUTPUT_TOKENS", "length"), ("rate-limited", None), ("oom", None)]
)
async def test_other_finish_reasons(reason: str, ends: str | None) -> None:
    chunk = _chunk(_call(0, "a", arguments='{"amount": 5}'), finish=reason)
    if ends is None:
        with pytest.raises(Unavailable, match=reason):
            await read((chunk,), [])
    else:
        assert (await read((chunk,), [])).finish_reason == ("tool_calls" if ends == "stop" else ends)


async def test_a_long_row_of_pieces_does_not_hold_the_event_loop() -> None:
    """Each piece of these could be a whole call, so the calls are compared at each."""
    data = tuple(_chunk(_call(0, "a", arguments=f'{{"amount": {n}}}')) for n in range(5_000))
    started = process_time()
    reply = await read((*data, _chunk(finish="tool_calls")), [])
    assert process_time() - started < 8
    assert len(reply.calls) == 1
