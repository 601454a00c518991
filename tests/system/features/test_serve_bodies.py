"""Bodies that no protocol of `mulligan serve` takes: refused in the protocol's own form, before Temporal is asked."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from temporalio.service import RetryConfig

from mulligan import connect
from mulligan.client.callback_tokens import DeferredCallId, callback_tokens
from mulligan.serve.arriving_body import BodyLimits
from tests.support.http_server import Door, http_server

LIMIT = 1_000_000
MCP = {
    "jsonrpc": "2.0", "id": 1, "method": "tools/call",
    "params": {
        "name": "shop", "arguments": {"prompt": "TEXT"},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    },
}  # fmt: skip
USER: dict[str, Any] = {"id": "m", "role": "user"}
THREAD: dict[str, Any] = {
    "threadId": "t",
    "runId": "r",
    "tools": [],
    "context": [],
    "state": None,
    "forwardedProps": None,
}

Read = Callable[[dict[str, Any]], str]


def by_rfc_9457(body: dict[str, Any]) -> str:
    return str(body["detail"])


def by_openai(body: dict[str, Any]) -> str:
    assert body["error"]["type"] == "invalid_request_error"
    return str(body["error"]["message"])


def by_json_rpc(body: dict[str, Any]) -> str:
    assert (body["jsonrpc"], body["id"]) == ("2.0", None)
    return str(body["error"]["message"])


DOORS: list[tuple[str, Any, Read]] = [
    # path, a body whose TEXT is replaced, how the protocol's error is read
    ("/api/runs", {"agent": "shop", "prompt": "TEXT"}, by_rfc_9457),
    ("/api/runs/x/messages", {"text": "TEXT"}, by_rfc_9457),
    ("/api/runs/x/decisions", {"call_id": "c", "decision": "deny", "reason": "TEXT"}, by_rfc_9457),
    ("/api/runs/x/answers", {"call_id": "c", "text": "TEXT"}, by_rfc_9457),
    ("/api/runs/x/stop", {"reason": "TEXT"}, by_rfc_9457),
    ("/api/runs/x/resume", {"prompt": "TEXT"}, by_rfc_9457),
    ("/api/callbacks/TOKEN", {"result": "TEXT"}, by_rfc_9457),
    ("/v1/responses", {"model": "shop", "input": "TEXT"}, by_openai),
    ("/v1/chat/completions", {"model": "shop", "messages": [{"role": "user", "content": "TEXT"}]}, by_openai),
    ("/ag-ui/shop", {**THREAD, "messages": [{**USER, "content": "TEXT"}]}, lambda body: str(body["message"])),
    (
        "/ai-sdk/shop",
        {"id": "c", "messages": [{**USER, "parts": [{"type": "text", "text": "TEXT"}]}]},
        lambda body: str(body["error"]),
    ),
    ("/mcp", MCP, by_json_rpc),
]
BAD: list[tuple[str, bytes, int, str]] = [
    # what stands for TEXT, the status, a part of the sentence
    ("half a surrogate pair", b'"\\ud800"', 422, "surrogate"),
    ("its other half", b'"x\\uDFFFx"', 422, "surrogate"),
    ("in a name", b'{"\\ud800": 1}', 422, "surrogate"),
    ("deep", b"[" * 200_000 + b"]" * 200_000, 400, "200 levels"),
    ("deep and open", b'{"a":' * 100_000, 400, "200 levels"),
    ("not a number", b"NaN", 400, "NaN"),
    ("infinity", b"-Infinity", 400, "-Infinity"),
    ("more than a float", b"1e999", 400, "1e999"),
    ("a long integer", b"1" + b"0" * 5_000, 400, "5,001 digits"),
    ("a name twice", b'{"a": 1, "a": 2}', 400, 'the name "a"'),
    ("not UTF-8", b'"\xff"', 400, "not UTF-8"),
    ("UTF-8 of a surrogate", b'"\xed\xa0\x80"', 400, "not UTF-8"),
    ("cut off", b'"x', 400, "not JSON"),
]


@pytest.fixture(scope="module")
async def door() -> AsyncIterator[Door]:
    """A server whose Temporal is away: what passes is answered with 503."""
    client = await connect("127.0.0.1:1", lazy=True, retry_config=RetryConfig(max_elapsed_time_millis=300))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MULLIGAN_CALLBACK_KEYS", "k" * 32)
        async with http_server(client, bodies=BodyLimits(most_bytes=LIMIT)) as served:
            yield served


async def with_token(path: str) -> str:
    """A path with the token of a call that the server knows by its key."""
    token = await callback_tokens(lambda: None).seal(DeferredCallId("run", "trace", "0", "call"))  # type: ignore[return-value,arg-type]
    return path.replace("TOKEN", token)


def filled(template: Any, value: bytes = b'"Hello."') -> bytes:
    return json.dumps(template).encode().replace(b'"TEXT"', value)


def headers_for(path: str) -> dict[str, str]:
    mcp = {"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "shop"}
    accept = "application/json, text/event-stream"
    return {"Content-Type": "application/json", "Accept": accept, **(mcp if path == "/mcp" else {})}


@pytest.mark.parametrize(("path", "template", "read"), DOORS, ids=[path for path, *_ in DOORS])
async def test_what_cannot_be_read_is_refused_in_the_protocols_own_form(
    door: Door, path: str, template: Any, read: Read
) -> None:
    """The same body with a text is not refused: it gets as far as Temporal, which is away."""
    headers, path = headers_for(path), await with_token(path)
    passed = await door.http.post(path, content=filled(template), headers=headers)
    assert passed.status_code == 503, passed.text
    for what, value, status, sentence in BAD:
        answer = await door.http.post(path, content=filled(template, value), headers=headers)
        expected = 400 if path.startswith("/v1") else status
        assert answer.status_code == expected, (what, answer.text)
        assert sentence in read(answer.json()), (what, answer.text)
    zipped = {**headers, "Content-Encoding": "gzip"}
    answer = await door.http.post(path, content=gzip.compress(filled(template)), headers=zipped)
    assert answer.status_code == 415, answer.text
    assert "Content-Encoding" in read(answer.json())
    if path != "/mcp":  # its SDK takes application/json only
        for kind in ("application/x-www-form-urlencoded", "nonsense"):
            other = await door.http.post(path, content=filled(template), headers={**headers, "Content-Type": kind})
            assert other.status_code == passed.status_code, (kind, other.text)


@pytest.mark.parametrize(("path", "_template", "read"), DOORS, ids=[path for path, *_ in DOORS])
async def test_a_body_of_unknown_length_is_refused_as_soon_as_it_is_too_large(
    door: Door, path: str, _template: Any, read: Read
) -> None:
    """The body never ends: a server that read on would not answer."""
    host, _, port = door.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = {"Host": host, **headers_for(path), "Transfer-Encoding": "chunked"}
    path = await with_token(path)
    writer.write(f"POST {path} HTTP/1.1\r\n".encode() + b"".join(f"{k}: {v}\r\n".encode() for k, v in head.items()))
    writer.write(b"\r\n")
    piece = b'"' + b"x" * 9_999
    for _ in range(LIMIT // len(piece) + 1):
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()
    answer = await reader.read()
    writer.close()
    head_text, _, body = answer.partition(b"\r\n\r\n")
    assert head_text.startswith(b"HTTP/1.1 413 "), answer
    assert b"connection: close" in head_text.lower()
    assert "1,000,000 bytes" in read(json.loads(body))
