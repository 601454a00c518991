"""Streams of the four providers as their APIs send them, with a value of another JSON type in any place."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx2
from hypothesis import strategies as st

from mulligan import ModelRequestError
from mulligan.activities.models._read_response import StreamAssembler, read_json, read_stream
from mulligan.activities.models.anthropic import anthropic
from mulligan.activities.models.anthropic._anthropic_assembler import AnthropicAssembler
from mulligan.activities.models.checked_reply import MOST_ID_CHARS, checked_reply
from mulligan.activities.models.google import google
from mulligan.activities.models.google._google_assembler import GoogleAssembler
from mulligan.activities.models.openai import openai_chat, openai_responses
from mulligan.activities.models.openai._chat_assembler import ChatAssembler
from mulligan.activities.models.openai._responses_assembler import ResponsesAssembler
from mulligan.activities.models.protocol import Reply, Request, Unavailable
from mulligan.wire.agent_facts import Definition
from tests.fuzz.inputs import json_values

REQUEST = Request(model="m", definition=Definition(instructions="", tools=[]), items=[], messages=[])
TEXT, CALL = "It is sunny.", '{"city": "Oslo"}'


@dataclass(frozen=True)
class Api:
    """How a provider reads answers, and an answer as a stream."""

    assembler: Callable[[Callable[[str], None]], StreamAssembler]
    reply: Callable[[dict[str, Any]], Reply]
    events: list[dict[str, Any]]


def _chunk(**delta: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}  # fmt: skip


_ITEMS: list[dict[str, Any]] = [
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "So."}], "encrypted_content": "e"},
    {"type": "message", "id": "msg_1", "role": "assistant", "phase": "final", "content": [{"type": "output_text", "text": TEXT, "annotations": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": CALL, "status": "completed"},
]  # fmt: skip
_RESPONSE = {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "error": None, "incomplete_details": None, "output": _ITEMS, "usage": {"input_tokens": 9, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 3}, "output_tokens_details": {"reasoning_tokens": 2}}}  # fmt: skip

APIS: dict[str, Api] = {
    "openai-chat": Api(
        ChatAssembler,
        openai_chat._reply,
        [
            _chunk(role="assistant", content="It is ", reasoning_content="So."),
            _chunk(content="sunny."),
            _chunk(tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": CALL[:5]}}]),
            _chunk(tool_calls=[{"index": 0, "function": {"arguments": CALL[5:]}}]),
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
            {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 2}}},
        ],
    ),
    "openai": Api(
        ResponsesAssembler,
        openai_responses._reply,
        [
            {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1", "status": "in_progress"}},
            {"type": "response.output_text.delta", "sequence_number": 1, "output_index": 1, "content_index": 0, "delta": TEXT},
            *({"type": "response.output_item.done", "sequence_number": 2 + n, "output_index": n, "item": item} for n, item in enumerate(_ITEMS)),
            {"type": "response.completed", "sequence_number": 6, "response": {**_RESPONSE, "output": []}},
        ],
    ),
    "anthropic": Api(
        AnthropicAssembler,
        lambda answer: anthropic._reply(answer, "anthropic", "KEY"),
        [
            {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None, "usage": {"input_tokens": 9, "cache_read_input_tokens": 3}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "So."}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
            {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": TEXT}},
            {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "c1", "name": "weather", "input": {}}},
            {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": CALL}},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 7}},
            {"type": "message_stop"},
        ],
    ),
    "google": Api(
        GoogleAssembler,
        lambda answer: google._reply(answer, REQUEST, "google", "KEY"),
        [
            {"candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": "So.", "thought": True}]}}], "responseId": "r1", "modelVersion": "m"},
            {"candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": TEXT}, {"functionCall": {"id": "c1", "name": "weather", "args": {"city": "Oslo"}}, "thoughtSignature": "s"}]}}]},
            {"candidates": [{"index": 0, "finishReason": "STOP", "finishMessage": ""}], "promptFeedback": {}, "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 5, "thoughtsTokenCount": 2, "cachedContentTokenCount": 3}},
        ],
    ),
}  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values in a JSON value, but for the whole one."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in items for place in [(*path, key), *places(inner, (*path, key))]]


OTHERS: st.SearchStrategy[Any] = json_values(max_leaves=4) | st.sampled_from(
    [{}, [], [[]], [{}], {"a": {}}, True, 0, -1, 1e308, 10**400, None, "", "x" * 100_000, "\ud800"]
)


def changed_streams() -> st.SearchStrategy[tuple[str, list[dict[str, Any]], bool]]:
    """The name of an API, its events with some values changed, and whether they are sent as one object."""

    def changes(name: str) -> st.SearchStrategy[tuple[str, list[dict[str, Any]], bool]]:
        change = st.tuples(st.sampled_from(places(APIS[name].events)), OTHERS)
        return st.builds(
            lambda made, is_whole: (name, changed(APIS[name].events, made), is_whole),
            *(st.lists(change, min_size=1, max_size=3), st.booleans()),
        )

    return st.sampled_from(sorted(APIS)).flatmap(changes)


def changed(events: list[dict[str, Any]], changes: list[tuple[tuple[Any, ...], Any]]) -> list[Any]:
    """A copy of the events with other values at some places."""
    events = copy.deepcopy(events)
    for (*path, last), value in changes:
        holder: Any = events
        with suppress(LookupError, TypeError):  # another change has removed it
            for key in path:
                holder = holder[key]
            holder[last] = copy.deepcopy(value)
    return events


async def read_events(api: Api, events: list[Any], *, is_whole: bool) -> Reply:
    """The reply in the events, which are sent as a stream, or `is_whole` as the object that they make."""
    if is_whole:
        # As without streaming: what the endpoint would have assembled, with the same wrong types.
        assembler = api.assembler(lambda text: None)
        for event in events:
            if isinstance(event, dict):
                with suppress(Exception):
                    assembler.add(event)
        answer = {}
        with suppress(Exception):
            answer = assembler.result()
        return checked_reply(api.reply(read_json(json.dumps(answer))))

    async def stream() -> AsyncIterator[bytes]:
        for event in events:
            yield f"data: {json.dumps(event)}\n\n".encode()

    response = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream())
    return checked_reply(api.reply(await read_stream(response, api.assembler(lambda text: None))))


def read_changed_stream(given: tuple[str, list[Any], bool]) -> None:
    """Read such a stream: it is a valid reply, or a typed error."""
    name, events, is_whole = given
    with suppress(Unavailable, ModelRequestError):
        reply = asyncio.run(read_events(APIS[name], events, is_whole=is_whole))
        json.dumps(reply.provider_data).encode()
        assert max(len(reply.response_id), len(reply.model)) <= MOST_ID_CHARS
        "".join((reply.text, *(call.id + call.name + call.arguments for call in reply.calls))).encode()
