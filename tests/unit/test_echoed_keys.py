"""Every provider, and every place of a response in which an endpoint can quote the key that it got: no text of it has the key."""

from __future__ import annotations

import asyncio
import base64
import copy
import itertools
import json
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx2
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from mulligan.activities.echoed_secrets import EchoedSecrets
from mulligan.activities.mcp.http_client import McpHttpClient, record_http
from mulligan.activities.mcp.response_limit import MAX_RESPONSE_BYTES
from mulligan.activities.models.protocol import Unavailable
from mulligan.errors import ModelRequestError
from tests.support.anthropic_api import AnthropicApi
from tests.support.google_api import GoogleApi
from tests.support.openai_stream import chat_events, response_events
from tests.support.openai_turn import Failure, Turn, chat_reply, responses_reply
from tests.support.provider_fixtures import Bench

KEY = "sk-proj/very+secret-4711"
TURN = Turn("Let me look.", calls=[("search", '{"a": "b"}', "c1")], refusal=None)
PATH, ASKED = "/v1beta/models/m:generateContent", {"model": "m"}
EVERY_API = ("openai", "openai-chat", "anthropic", "google")


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Bench.open(monkeypatch) as bench:
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
            monkeypatch.setenv(name, KEY)
        yield bench


def whole(api: str) -> dict[str, Any]:
    """An answer of the endpoint, without streaming."""
    match api:
        case "openai":
            return responses_reply(TURN, ASKED, "seed")
        case "openai-chat":
            return chat_reply(TURN, ASKED, "seed")
        case "anthropic":
            return AnthropicApi().reply(TURN, PATH, ASKED, "seed")
    return GoogleApi().reply(TURN, PATH, ASKED, "seed")


def streamed(api: str) -> list[Any]:
    """The events of the same answer."""
    match api:
        case "openai":
            return response_events(whole(api))
        case "openai-chat":
            return chat_events(whole(api), with_usage=True)
        case "anthropic":
            return AnthropicApi().events(TURN, whole(api), "seed")
    return GoogleApi().events(TURN, whole(api), "seed")


def with_the_key(value: Any) -> Iterator[Any]:
    """The value with the key in the place of each of its parts, and as a name, one at a time."""
    yield f"bad key {KEY}"
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place, inner in list(pairs):
        for changed in with_the_key(inner):
            other = copy.copy(value)
            other[place] = changed
            yield other
    if isinstance(value, dict):
        yield {**value, f"name {KEY}": KEY}
        yield {**value, "error": {"message": f"bad key {KEY}", "code": KEY, "type": KEY, "param": {KEY: KEY}}}
        yield {**value, "error": {"message": f"bad key {KEY}", "code": 500}}


ERRORS: list[Any] = [
    {"error": f"bad key {KEY}"},
    {"error": {"message": f"bad key {KEY}"}},
    {"error": {"message": f"bad key {KEY}", "code": 401}},
    {"type": "error", "error": {"type": "invalid", "message": KEY}},
    {"message": f"bad key {KEY}"},
    {"detail": [{"msg": KEY}]},
    {"status": "failed", "error": {"code": "invalid_prompt", "message": KEY}},
    {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": f"Malformed: call({KEY})"}]},
    {"promptFeedback": {"blockReason": KEY, "blockReasonMessage": KEY}},
    f"<html>{KEY}</html>",
    f"{KEY} is wrong",
    f"{'x' * 60}{KEY}",  # an error quotes 80 characters
    json.dumps({"error": f"{'x' * 1_990}{KEY}"}),  # and of a message 2,000
    json.dumps({"error": KEY}).replace("/", "\\/"),
    json.dumps({"error": KEY}).replace("+", "\\u002B"),
]


async def texts_of(bench: Bench, api: str, turn: Turn, *, is_streamed: bool) -> str:
    """All that a run would get of the response, an answer or an error, and what followers would see."""
    pieces: list[str] = []
    bench.server.script("m", lambda body, nth: turn)
    try:
        reply = await bench.ask(api, on_text=pieces.append if is_streamed else None)
        return f"{reply}{''.join(pieces)}"
    except (ModelRequestError, Unavailable) as error:
        return f"{error}{vars(error)}{''.join(pieces)}"


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("status", [200, 400, 401, 429, 500])
@pytest.mark.parametrize("api", EVERY_API)
async def test_no_error_has_the_key_that_an_endpoint_quotes(
    bench: Bench, api: str, status: int, is_streamed: bool
) -> None:
    headers = {"x-request-id": f"req {KEY}", "request-id": KEY, "retry-after": "0"}
    for body in ERRORS:
        failure = Failure(
            status, body, headers | ({} if isinstance(body, dict) else {"Content-Type": "application/json"})
        )
        text = await texts_of(bench, api, Turn(failure=failure), is_streamed=is_streamed)
        assert KEY not in text, body
        assert KEY[:12] not in text, body


@pytest.mark.parametrize("api", EVERY_API)
async def test_no_answer_has_the_key_in_any_place(bench: Bench, api: str) -> None:
    texts = [
        await texts_of(bench, api, Turn(failure=Failure(200, body)), is_streamed=False)
        for body in with_the_key(whole(api))
        if isinstance(body, dict)
    ]
    assert [text for text in texts if KEY in text] == []
    assert sum("[key]" in text for text in texts) > 2


@pytest.mark.parametrize("api", EVERY_API)
async def test_no_streamed_answer_has_the_key_in_any_place_of_an_event(bench: Bench, api: str) -> None:
    events = streamed(api)
    texts = []
    for number, event in enumerate(events):
        for changed in with_the_key(event):
            bench.providers[api]._client._failed_streams.clear()  # type: ignore[attr-defined]  # all of them are streamed
            turn = Turn(events=[*events[:number], changed, *events[number + 1 :]])
            texts.append(await texts_of(bench, api, turn, is_streamed=True))
    assert [text for text in texts if KEY in text] == []
    assert sum("[key]" in text for text in texts) > 2


@pytest.mark.parametrize("size", [1, 3, len(KEY) - 1])
@pytest.mark.parametrize("api", EVERY_API)
async def test_a_key_in_the_pieces_of_a_stream_is_replaced(bench: Bench, api: str, size: int) -> None:
    """In the answer, in its calls, and in the text that followers see meanwhile. What only begins it arrives at the end."""
    turn = Turn(f"{'x' * size} {KEY} {KEY[:size]}", calls=[("search", json.dumps({"a": KEY}), "c1")])
    assert KEY not in await texts_of(bench, api, turn, is_streamed=True)
    pieces: list[str] = []
    reply = await bench.answer(api, turn, on_text=pieces.append)
    assert reply.text == "".join(pieces) == f"{'x' * size} [key] {KEY[:size]}"
    assert json.loads(reply.calls[0].arguments) == {"a": "[key]"}


@given(st.lists(st.sampled_from([KEY, KEY[:7], KEY[7:], "s", "sk-", "text ", KEY.replace("/", "\\/")])), st.data())
def test_the_key_is_replaced_however_the_bytes_are_cut(parts: list[str], data: st.DataObject) -> None:
    """Bytes that do not belong to the key arrive unchanged, and wait only while they may begin it."""
    secrets = EchoedSecrets(httpx2.Headers({"Authorization": f"Bearer {KEY}"}))
    text = "".join(parts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    written, held = b"", b""
    forms = (KEY, KEY.replace("/", "\\/"), KEY.replace("+", "\\u002B"))
    for begin, end in itertools.pairwise([0, *cuts, len(text)]):
        cleaned, held = secrets.clean_bytes(held + text[begin:end])
        written += cleaned
        begun = [size for form in forms for size in range(len(form)) if (written + held).endswith(form[:size].encode())]
        assert len(held) == max(begun)  # all that cannot begin the key is passed on at once
    expected = text.replace(KEY.encode(), b"[key]").replace(KEY.replace("/", "\\/").encode(), b"[key]")
    assert written + held == expected
    pieces: list[str] = []
    write = secrets.clean_pieces(pieces.append)
    for begin, end in itertools.pairwise([0, *cuts, len(text)]):
        write(text[begin:end].decode())
    assert "".join(pieces) == written.decode()
    write("", is_last=True)
    assert "".join(pieces) == expected.decode()
    assert secrets.clean_bytes(b"data: {}\n\n") == (b"data: {}\n\n", b"")


@pytest.mark.parametrize(
    ("headers", "names", "expected"),
    [
        ({"Authorization": "Bearer none"}, (), []),
        ({"x-api-key": "lm-studio"}, (), []),  # a placeholder: models may write the word
        ({"x-api-key": "sk-SECRET"}, (), ["sk-SECRET"]),
        ({"x-team": "very-secret-team"}, (), []),
        ({"x-team": "very-secret-team"}, ("x-team",), []),
        ({"x-team": "very-secret-4711"}, ("x-team",), ["very-secret-4711"]),
        ({"cookie": "session=abcdefgh"}, (), ["session=abcdefgh"]),
        ({"idempotency-key": "a-1234-reasoning"}, (), []),
    ],
)
def test_what_is_a_secret(headers: dict[str, str], names: tuple[str, ...], expected: list[str]) -> None:
    assert EchoedSecrets(httpx2.Headers(headers), names).values == expected


NAMES = st.lists(
    st.sampled_from(["author", "tokenizer", "monkey", "cookiecutter", "keyboard", "team"]), min_size=1, max_size=3
)
SECRET_NAMES = ["authorization", "proxy-authorization", "api-key", "x-api-key", "X-ApiKey", "x-goog-api-key", "x_auth_token",
                "cookie", "X-Amz-Security-Token", "x-secret", "X-Credentials"]  # fmt: skip
PLACEHOLDERS = ["sk-no-key-required", "not-required", "your-api-key-here", "YOUR_API_KEY_HERE", "none", "EMPTY", "ollama",
                "llama3.1", "qwen2.5-coder:32b", "gpt-4o-mini", "deepseek-r1", "meta-llama/llama-3.1-8b-instruct"]  # fmt: skip
RANDOM = st.binary(min_size=12, max_size=40).map(lambda data: base64.urlsafe_b64encode(data).decode()) | st.uuids().map(
    str
)


@given(NAMES, st.sampled_from(SECRET_NAMES), st.sampled_from("-_"), RANDOM, st.sampled_from(PLACEHOLDERS))
def test_a_secret_is_a_random_value_of_a_header_whose_name_has_a_word_for_it(
    words: list[str], name: str, separator: str, value: str, placeholder: str
) -> None:
    """A part of another word does not count, nor a value that models write themselves."""
    assert EchoedSecrets({separator.join(words): value}).values == []
    assert EchoedSecrets({name: f"Bearer {value}" if "ization" in name else value}).values == [value]
    assert EchoedSecrets({name: f"Bearer {placeholder}" if "ization" in name else placeholder}).values == []


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "identity": bytes,
    "gzip": lambda data: zlib.compress(data, wbits=31),
    "deflate": zlib.compress,
    "Deflate": lambda data: zlib.compress(data, wbits=-15),  # without zlib's header, as some servers send it
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("header", ["Authorization", "X-Api-Key"])
@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
async def test_an_mcp_server_that_quotes_its_token(header: str, content_type: str, encoding: str) -> None:
    """In its JSON, in its stream, and in its headers, with any status and encoding."""

    async def quote(request: web.Request) -> web.Response:
        body = f"data: {json.dumps({'token': request.headers[header]})}\n\n"
        answer = {"Content-Type": content_type, "X-Echo": request.headers[header]}
        answer |= {"Content-Encoding": encoding} if encoding else {}
        return web.Response(status=int(request.path[1:]), body=ENCODINGS[encoding](body.encode()), headers=answer)

    async def headers() -> dict[str, str]:
        return {header: f"Bearer {KEY}" if header == "Authorization" else KEY, "X-Team": "a-team-of-ours"}

    app = web.Application()
    app.router.add_post("/{status}", quote)
    async with TestServer(app, host="127.0.0.1") as server, McpHttpClient(headers) as client:
        for status in (200, 401):
            for stream in (False, True):
                response = await client.send(
                    client.build_request("POST", str(server.make_url(f"/{status}"))), stream=stream
                )
                text = (await response.aread()).decode()
                assert text.startswith("data: ")
                assert "[key]" in text
                assert KEY not in f"{text}{response.headers.raw}"


@pytest.mark.parametrize("encoding", [None, web.ContentCoding.gzip, web.ContentCoding.deflate])
async def test_each_event_of_an_mcp_server_arrives_while_its_stream_is_open(encoding: web.ContentCoding | None) -> None:
    is_read = [asyncio.Event() for _ in range(3)]

    async def stream(request: web.Request) -> web.StreamResponse:
        compressor = zlib.compressobj(wbits=31 if encoding is web.ContentCoding.gzip else 15)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if encoding:
            response.headers["Content-Encoding"] = encoding.value
        await response.prepare(request)
        for event in is_read:
            data = f"data: {KEY}\n\n".encode()
            await response.write(compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH) if encoding else data)
            await event.wait()
        return response

    async def headers() -> dict[str, str]:
        return {"X-Api-Key": KEY}

    app = web.Application()
    app.router.add_get("/", stream)
    async with TestServer(app, host="127.0.0.1") as server, McpHttpClient(headers) as client:
        response = await client.send(client.build_request("GET", str(server.make_url("/"))), stream=True)
        pieces = response.aiter_bytes()
        for event in is_read:
            text = b""
            while not text.endswith(b"\n\n"):
                text += await anext(pieces)
            assert text == b"data: [key]\n\n"
            event.set()
        await response.aclose()


@pytest.mark.parametrize("encoding", ["gzip", "br"])
async def test_an_mcp_answer_that_cannot_be_read_is_a_sentence(encoding: str) -> None:
    """One that becomes large, and one of another encoding."""

    async def answer(request: web.Request) -> web.Response:
        body = zlib.compress(b" " * (MAX_RESPONSE_BYTES + 1), wbits=31)
        return web.Response(body=body, headers={"Content-Type": "application/json", "Content-Encoding": encoding})

    async def headers() -> dict[str, str]:
        return {}

    app = web.Application()
    app.router.add_post("/", answer)
    async with TestServer(app, host="127.0.0.1") as server, McpHttpClient(headers) as client:
        with record_http() as http:
            response = await client.post(str(server.make_url("/")))
    reason = {"gzip": "it has more than 8,000,000 bytes", "br": "it has the encoding 'br', which was not requested"}
    assert response.status_code == 503
    assert str(http) == f"its answer cannot be read: {reason[encoding]}"
