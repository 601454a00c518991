"""Whatever an endpoint sends, a worker keeps a limited part of it, and the call fails with an error that may be retried."""

from __future__ import annotations

import asyncio
import itertools
import json
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from mulligan.activities import _answer_limit
from mulligan.activities.models import _read_response
from mulligan.activities.models.anthropic._anthropic_assembler import AnthropicAssembler
from mulligan.activities.models.anthropic.anthropic import _reply as anthropic_reply
from mulligan.activities.models.google._google_assembler import GoogleAssembler
from mulligan.activities.models.openai._chat_assembler import ChatAssembler
from mulligan.activities.models.openai._responses_assembler import ResponsesAssembler
from mulligan.activities.models.openai.openai_responses import _reply as responses_reply
from mulligan.activities.models.protocol import Unavailable
from mulligan.errors import MAX_FIELD_CHARS, ModelRequestError
from mulligan.observe.spans import chat_response
from mulligan.values import Usage
from tests.support.provider_fixtures import Bench

STREAM_BYTES, EVENT_BYTES = 3_000_000, 1_000_000
MOST_SENT = 30_000_000
"""What the server may have sent when the client ends the connection: the sockets' buffers are in it."""
X = b"x" * 65_536
TEXT_EVENTS = {
    "openai": {"type": "response.output_text.delta", "output_index": 0, "delta": "hello"},
    "openai-chat": {"choices": [{"delta": {"content": "hello"}}]},
    "anthropic": {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}},
    "google": {"candidates": [{"content": {"parts": [{"text": "hello"}]}}]},
}


def gzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    compressor = zlib.compressobj(wbits=31)
    for piece in pieces:
        yield compressor.compress(piece)


def event(data: Any) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


Answer = tuple[int, dict[str, str], Callable[[str], Iterator[bytes]]]
SSE = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}
ANSWERS: dict[str, Answer] = {
    "a line without an end": (200, SSE, lambda _: itertools.chain([b"data: "], itertools.repeat(X))),
    "events without an end": (200, SSE, lambda api: itertools.repeat(event(TEXT_EVENTS[api]) * 500)),
    "an event of many lines": (200, SSE, lambda _: itertools.repeat(b"data: 1,\n" * 5_000)),
    "a body without an end": (200, JSON, lambda _: itertools.chain([b'{"a":"'], itertools.repeat(X))),
    "an error without an end": (500, JSON, lambda _: itertools.chain([b'{"a":"'], itertools.repeat(X))),
    "a refusal without an end": (400, {}, lambda _: itertools.repeat(X)),
    "a small body that is large": (200, {**JSON, "content-encoding": "gzip"}, lambda _: gzipped(itertools.repeat(X))),
    "a body compressed twice": (200, {**JSON, "content-encoding": "gzip, gzip"}, lambda _: itertools.repeat(X)),
    "many values": (200, JSON, lambda _: iter([b'{"a":[' + b"[]," * 250_000 + b"[]]}"])),
}  # fmt: skip


@asynccontextmanager
async def endpoint(monkeypatch: pytest.MonkeyPatch, api: str, answer: Answer) -> AsyncIterator[list[int]]:
    """A server at the addresses of all providers. Yields the number of bytes that it has sent for each request."""
    status, headers, pieces = answer
    sent: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            sent.append(0)
            fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(f"HTTP/1.1 {status} x\r\n{fields}connection: close\r\n\r\n".encode())
            for piece in pieces(api):
                writer.write(piece)
                sent[-1] += len(piece)
                await writer.drain()
                await asyncio.sleep(0)  # the client has the same event loop
                if sent[-1] > MOST_SENT:
                    break
            await asyncio.sleep(0.05)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"):
            monkeypatch.setenv(name, url)
        yield sent


@pytest.mark.parametrize("what", ANSWERS)
@pytest.mark.parametrize("api", TEXT_EVENTS)
async def test_an_answer_that_does_not_end_is_cut_off(monkeypatch: pytest.MonkeyPatch, api: str, what: str) -> None:
    monkeypatch.setattr(_answer_limit, "MAX_STREAM_BYTES", STREAM_BYTES)
    monkeypatch.setattr(_answer_limit, "MAX_EVENT_BYTES", EVENT_BYTES)
    monkeypatch.setattr(_read_response, "MAX_EVENT_BYTES", EVENT_BYTES)
    async with Bench.open(monkeypatch) as bench, endpoint(monkeypatch, api, ANSWERS[what]) as sent:
        with pytest.raises((Unavailable, ModelRequestError)) as caught:
            await bench.ask(api, on_text=lambda text: None)
    assert max(sent) <= MOST_SENT
    assert "more than" in str(caught.value) or "was not requested" in str(caught.value)


async def test_a_compressed_answer_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    message = {"choices": [{"message": {"content": "Hi. " * 50_000}, "finish_reason": "stop"}]}
    data = zlib.compress(json.dumps(message).encode(), wbits=31)
    answer: Answer = (
        200,
        {**JSON, "content-encoding": "gzip"},
        lambda _: (data[n : n + 7] for n in range(0, len(data), 7)),
    )
    async with Bench.open(monkeypatch) as bench, endpoint(monkeypatch, "openai-chat", answer):
        assert (await bench.ask("openai-chat")).text == "Hi. " * 50_000


@pytest.mark.parametrize(
    ("assembler", "part"),
    [
        (ChatAssembler, lambda n: {"choices": [{"delta": {"tool_calls": [{"id": str(n), "index": n}]}}]}),
        (ResponsesAssembler, lambda n: {"type": "response.output_item.done", "output_index": n, "item": {}}),
        (AnthropicAssembler, lambda n: {"type": "content_block_start", "index": n, "content_block": {"type": "tool_use"}}),
        (GoogleAssembler, lambda n: {"candidates": [{"content": {"parts": [{"functionCall": {}}]}}]}),
    ],
    ids=TEXT_EVENTS,
)  # fmt: skip
def test_an_answer_has_a_limited_number_of_parts(assembler: Any, part: Callable[[int], dict[str, Any]]) -> None:
    assembled = assembler(lambda text: None)
    for number in range(10_000):
        assembled.add(part(number))
    with pytest.raises(Unavailable, match="more than 10,000 parts"):
        assembled.add(part(10_000))


@pytest.mark.parametrize("api", ["anthropic", "google"])
def test_a_stream_keeps_only_the_fields_that_are_read(api: str) -> None:
    """Each event could add others, for as long as the stream lasts."""
    if api == "anthropic":
        assembled: Any = AnthropicAssembler(lambda text: None)
        for number in range(1_000):
            assembled.add({"type": "message_delta", "delta": {f"x{number}": 1}, "usage": {f"y{number}": 1}})
        assembled.add({"type": "message_stop"})
        assert assembled.result() == {"usage": {}, "content": []}
    else:
        assembled = GoogleAssembler(lambda text: None)
        for number in range(1_000):
            assembled.add({"candidates": [{f"x{number}": 1, "finishReason": "STOP"}], f"y{number}": 1})
        assert assembled.result() == {
            "candidates": [{"finishReason": "STOP", "content": {"role": "model", "parts": []}}]
        }


def test_many_calls_at_the_end_of_an_answer_take_linear_time() -> None:
    """An endpoint may send as many as fit into one event; it took a minute."""
    calls = [{"type": "tool_use", "name": "a", "id": "b"}] * 60_000
    reply = anthropic_reply({"content": [{"type": "thinking", "thinking": "x"}, *calls]}, "anthropic", "KEY")
    assert len(reply.provider_data["anthropic"]) == 1  # type: ignore[index, arg-type]
    reasoning = {"type": "reasoning", "id": "r", "encrypted_content": "x"}
    called = [{"type": "function_call", "name": "a", "call_id": "b", "arguments": "{}"}] * 60_000
    answer = responses_reply({"status": "completed", "output": [reasoning, *called]}, "openai")
    assert len(answer.provider_data["openai"]) == 1  # type: ignore[index, arg-type]


def test_a_long_message_of_an_endpoint_is_cut() -> None:
    """A failure of more than 4 MB cannot be sent to Temporal: the call would be tried again without an end."""
    for error in (Unavailable("x" * 5_000_000), ModelRequestError("x" * 5_000_000)):
        assert len(str(error)) < MAX_FIELD_CHARS + 100
    attributes = chat_response(response_id="x" * 5_000_000, model="y" * 5_000_000, finish_reason="stop", usage=Usage())
    assert len(str(attributes)) < 100_000
