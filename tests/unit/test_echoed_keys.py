"""Every provider, and every place of a response in which an endpoint can quote the key that it got: no text of it has the key."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from mulligan.activities.echoed_secrets import EchoedSecrets
from mulligan.activities.mcp.http_client import McpHttpClient
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


def streamed(api: str) -> list[dict[str, Any] | str]:
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
            turn = Turn(events=[*events[:number], changed, *events[number + 1 :]])
            texts.append(await texts_of(bench, api, turn, is_streamed=True))
    assert [text for text in texts if KEY in text] == []
    assert sum("[key]" in text for text in texts) > 2


@pytest.mark.parametrize("size", [1, 3, len(KEY) - 1])
@pytest.mark.parametrize("api", EVERY_API)
async def test_a_key_in_the_pieces_of_a_stream_is_replaced(bench: Bench, api: str, size: int) -> None:
    """In the answer, in its calls, and in the text that followers see meanwhile."""
    turn = Turn(f"{'x' * size} {KEY}.", calls=[("search", json.dumps({"a": KEY}), "c1")])
    assert KEY not in await texts_of(bench, api, turn, is_streamed=True)
    pieces: list[str] = []
    reply = await bench.answer(api, turn, on_text=pieces.append)
    assert reply.text == "".join(pieces) == f"{'x' * size} [key]."
    assert json.loads(reply.calls[0].arguments) == {"a": "[key]"}


@given(st.lists(st.sampled_from([KEY, KEY[:7], KEY[7:], "s", "sk-", "text ", KEY.replace("/", "\\/")])), st.data())
def test_the_key_is_replaced_however_the_bytes_are_cut(parts: list[str], data: st.DataObject) -> None:
    """Bytes that do not belong to the key arrive unchanged, and wait only while they may begin it."""
    secrets = EchoedSecrets(httpx2.Headers({"Authorization": f"Bearer {KEY}"}))
    text = "".join(parts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    written, held = b"", b""
    for begin, end in itertools.pairwise([0, *cuts, len(text)]):
        cleaned, held = secrets.clean_bytes(held + text[begin:end])
        assert len(held) < len(KEY) + 2
        written += cleaned
    expected = text.replace(KEY.encode(), b"[key]").replace(KEY.replace("/", "\\/").encode(), b"[key]")
    assert written + held == expected
    pieces: list[str] = []
    write = secrets.clean_pieces(pieces.append)
    for begin, end in itertools.pairwise([0, *cuts, len(text)]):
        write(text[begin:end].decode())
    assert (written + held).decode().startswith("".join(pieces))
    assert secrets.clean_bytes(b"data: {}\n\n") == (b"data: {}\n\n", b"")


@pytest.mark.parametrize(
    ("headers", "names", "expected"),
    [
        ({"Authorization": "Bearer none"}, (), []),
        ({"x-api-key": "lm-studio"}, (), []),  # a placeholder: models may write the word
        ({"x-api-key": "sk-SECRET"}, (), ["sk-SECRET"]),
        ({"x-team": "very-secret-team"}, (), []),
        ({"x-team": "very-secret-team"}, ("x-team",), ["very-secret-team"]),
        ({"cookie": "session=abcdefgh"}, (), ["session=abcdefgh"]),
        ({"idempotency-key": "a-1234-reasoning"}, (), []),
    ],
)
def test_what_is_a_secret(headers: dict[str, str], names: tuple[str, ...], expected: list[str]) -> None:
    assert EchoedSecrets(httpx2.Headers(headers), names).values == expected


@pytest.mark.parametrize("header", ["Authorization", "X-Api-Key"])
@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
async def test_an_mcp_server_that_quotes_its_token(header: str, content_type: str) -> None:
    """In its JSON and in its stream, with any status."""

    async def quote(request: web.Request) -> web.Response:
        body = f"data: {json.dumps({'token': request.headers[header]})}\n\n"
        return web.Response(status=int(request.path[1:]), body=body, headers={"Content-Type": content_type})

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
                assert "[key]" in text
                assert KEY not in text
