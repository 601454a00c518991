"""Errors of the endpoint: which are retryable, after which time, and their messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan.activities.models._http_errors import retry_after
from mulligan.activities.models._sdk_client import SdkClient
from mulligan.activities.models.anthropic._anthropic_client import AnthropicClient
from mulligan.activities.models.openai._openai_client import OpenAIClient
from mulligan.activities.models.openai.openai_chat import OpenAIChat
from mulligan.activities.models.openai.openai_responses import OpenAIResponses
from mulligan.activities.models.protocol import Request, Unavailable
from mulligan.endpoint import Endpoint
from mulligan.errors import ModelRequestError
from mulligan.values import UserMessage
from mulligan.wire.agent_facts import Definition
from tests.support.openai_server import Failure, OpenAIServer, Turn

KEY = "sk-very-secret-4711"


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield server


@pytest.fixture
async def client() -> AsyncIterator[OpenAIClient]:
    client = OpenAIClient()
    yield client
    await client.close()


async def ask(client: OpenAIClient, api: str = "openai-chat", timeout: float = 60) -> None:
    provider = OpenAIChat(client) if api == "openai-chat" else OpenAIResponses(client)
    go = UserMessage(role="user", text="Go.")
    definition = Definition(instructions="", tools=[])
    await provider.complete(Request("m", definition, provider.encode(go), [go], timeout=timeout))


async def error(
    server: OpenAIServer, client: OpenAIClient, failure: Failure, api: str = "openai-chat", timeout: float = 60
) -> Any:
    """The error raised for a failure. Asserts that only one request was sent: the package's retries are off."""
    server.script("m", [Turn(failure=failure)])
    with pytest.raises((Unavailable, ModelRequestError)) as raised:
        await ask(client, api, timeout)
    assert len(server.requests) == 1
    # Temporal would write causes to history, with the content that they quote.
    assert raised.value.__cause__ is None
    assert KEY not in str(raised.value)
    return raised.value


def openai_error(message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "some_error", "param": None, "code": code}}


@pytest.mark.parametrize("api", ["openai", "openai-chat"])
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 520, 599])
async def test_a_temporary_status_raises_unavailable_with_retry_after(
    server: OpenAIServer, client: OpenAIClient, api: str, status: int
) -> None:
    found = await error(server, client, Failure(status=status, headers={"retry-after": "7"}), api)
    assert isinstance(found, Unavailable)
    assert (found.status, found.retry_after) == (status, 7.0)
    assert f"{status}: scripted failure {status}" in str(found)


@pytest.mark.parametrize("api", ["openai", "openai-chat"])
@pytest.mark.parametrize("status", [304, 400, 401, 402, 403, 404, 405, 413, 415, 422, 431])
async def test_a_permanent_status_raises_model_request_error_with_the_request_id(
    server: OpenAIServer, client: OpenAIClient, api: str, status: int
) -> None:
    body = openai_error("No, thanks.")
    failure = Failure(status=status, body=body, headers={"x-request-id": "req_7", "retry-after": "7"})
    found = await error(server, client, failure, api)
    assert isinstance(found, ModelRequestError)
    assert (found.status, found.request_id) == (status, "req_7")
    if status != 304:  # 304 has no body
        assert "No, thanks." in found.message
    assert ("OPENAI_API_KEY" in found.message) is (status == 401)


BODIES: list[tuple[str, Any, str]] = [
    ("OpenAI's", openai_error("No."), "No."),
    ("with a code", openai_error("Slow down.", "rate_limit_exceeded"), "Slow down. (rate_limit_exceeded)"),
    ("no message", {"error": {"code": "odd"}}, '{"code": "odd"}'),
    ("a text", {"error": "model not found"}, "model not found"),
    ("vLLM's", {"object": "error", "message": "too long", "code": 400}, "too long"),
    ("FastAPI's", {"detail": [{"loc": ["body"], "msg": "field required"}]}, "field required"),
    ("HTML", "<html>nginx</html>", "a page of HTML"),
    ("plain", "upstream connect error", "upstream connect error"),
    ("empty", "", "nothing was said"),
    ("half a character", openai_error("a\ud800b"), "a\ufffdb"),
    ("the key itself", openai_error(f"Key {KEY} is not known."), "Key [key] is not known."),
    ("long", openai_error("x" * 100_000), "x" * 2_000),
]


@pytest.mark.parametrize("status", [400, 429])
@pytest.mark.parametrize(("body", "told"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES])
async def test_the_error_contains_the_message_of_the_provider_shortened(
    server: OpenAIServer, client: OpenAIClient, status: int, body: Any, told: str
) -> None:
    found = await error(server, client, Failure(status=status, body=body))
    assert told in str(found)
    assert len(str(found)) < 2_200
    assert isinstance(found, ModelRequestError if status == 400 else Unavailable)


PERMANENT: list[Any] = [
    openai_error("You exceeded your current quota.", "insufficient_quota"),
    {"error": {"message": "You exceeded your current quota.", "type": "insufficient_quota", "code": None}},
    openai_error("Your limit has been reached.", "billing_hard_limit_reached"),
    openai_error("The account is deactivated.", "account_deactivated"),
    {"message": "The account is not active.", "code": "billing_not_active"},
]


@pytest.mark.parametrize("api", ["openai", "openai-chat"])
@pytest.mark.parametrize("body", PERMANENT)
async def test_a_429_that_only_the_account_can_end_is_not_retried(
    server: OpenAIServer, client: OpenAIClient, api: str, body: Any
) -> None:
    found = await error(server, client, Failure(status=429, body=body, headers={"retry-after": "7"}), api)
    assert isinstance(found, ModelRequestError)
    assert found.status == 429


@pytest.mark.parametrize("api", ["openai", "openai-chat"])
async def test_a_page_of_html_in_place_of_an_answer_is_named_in_one_line(
    server: OpenAIServer, client: OpenAIClient, api: str
) -> None:
    found = await error(server, client, Failure(status=200, body="<!doctype html>\n<html>a\nproxy</html>"), api)
    assert isinstance(found, Unavailable)
    assert str(found) == "the endpoint answered with a page of HTML, not with JSON (is its base URL right?)"


DATE = "Tue, 06 Oct 2026 10:00:00 GMT"
WAITS: list[tuple[dict[str, str], float | None]] = [
    ({}, None),
    ({"Retry-After": "3"}, 3.0),
    ({"Retry-After": "0.25"}, 0.25),
    ({"Retry-After": "0"}, 0.0),
    ({"Retry-After": "-5"}, 0.0),
    ({"Retry-After": "86400"}, 86400.0),
    ({"retry-after-ms": "1500"}, 1.5),
    ({"retry-after-ms": "1500", "Retry-After": "9"}, 1.5),
    ({"retry-after-ms": "soon", "Retry-After": "9"}, 9.0),
    ({"Retry-After": "soon"}, None),
    ({"Retry-After": ""}, None),
    ({"Retry-After": "nan"}, None),
    ({"Retry-After": "inf"}, None),
    ({"Date": DATE, "Retry-After": "Tue, 06 Oct 2026 10:02:05 GMT"}, 125.0),
    ({"Date": DATE, "Retry-After": "Tue, 06 Oct 2026 09:00:00 GMT"}, 0.0),
    ({"Date": DATE, "Retry-After": "Tue, 99 Oct 2026 09:00:00 GMT"}, None),
    ({"Date": "?", "Retry-After": "Tue, 06 Oct 1998 10:00:00 GMT"}, 0.0),
]


@pytest.mark.parametrize(("headers", "seconds"), WAITS, ids=[str(row[0]) for row in WAITS])
async def test_retry_after_is_read_from_any_of_its_headers(
    server: OpenAIServer, client: OpenAIClient, headers: dict[str, str], seconds: float | None
) -> None:
    found = await error(server, client, Failure(status=503, headers=headers))
    assert isinstance(found, Unavailable)
    assert found.retry_after == seconds


def test_retry_after_without_a_date_of_the_response() -> None:
    assert retry_after({"retry-after": "Tue, 06 Oct 1998 10:00:00 GMT"}) == 0.0


@pytest.mark.parametrize("failure", [Failure(drop="before"), Failure(drop="in_body", status=200, body={"choices": []})])
async def test_a_dropped_connection_raises_unavailable(
    server: OpenAIServer, client: OpenAIClient, failure: Failure
) -> None:
    found = await error(server, client, failure)
    assert isinstance(found, Unavailable)
    assert "the connection to 127.0.0.1 failed (" in str(found)
    assert (found.status, found.retry_after) == (None, None)


async def test_a_request_that_times_out_raises_unavailable_and_closes_the_connection(
    server: OpenAIServer, client: OpenAIClient
) -> None:
    """The endpoint never responds."""
    found = await error(server, client, Failure(wait=asyncio.Event()), timeout=0.2)
    assert isinstance(found, Unavailable)
    assert "in time (ReadTimeout)" in str(found)
    await server.requests[0].done.wait()
    assert server.requests[0].disconnected


async def test_a_cancelled_request_raises_cancelled_error_and_closes_the_connection(
    server: OpenAIServer, client: OpenAIClient
) -> None:
    """A cancellation is not an error of the endpoint."""
    server.script("m", [Turn(wait=asyncio.Event())])
    asking = asyncio.create_task(ask(client))
    await server.wait_for_requests(1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await server.requests[0].done.wait()
    assert server.requests[0].disconnected


SET_UPS: list[tuple[str, dict[str, str | None], str]] = [
    ("no key", {"OPENAI_API_KEY": None}, "set OPENAI_API_KEY"),
    ("an empty key", {"OPENAI_API_KEY": ""}, "set OPENAI_API_KEY"),
    ("an admin key alone", {"OPENAI_API_KEY": None, "OPENAI_ADMIN_KEY": KEY}, "set OPENAI_API_KEY"),
    ("a key with a line's end", {"OPENAI_API_KEY": KEY + "\n"}, "OPENAI_API_KEY, or another header"),
    ("a key that is no ASCII", {"OPENAI_API_KEY": KEY + "é"}, "OPENAI_API_KEY, or another header"),
    ("no address", {"OPENAI_BASE_URL": "localhost:8000/v1"}, "OPENAI_BASE_URL is no"),
    ("an empty address", {"OPENAI_BASE_URL": ""}, "OPENAI_BASE_URL is no"),
]


@pytest.mark.parametrize(("environment", "told"), [row[1:] for row in SET_UPS], ids=[row[0] for row in SET_UPS])
async def test_a_missing_key_or_package_is_reported_with_the_setting_to_change(
    server: OpenAIServer,
    client: OpenAIClient,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str | None],
    told: str,
) -> None:
    """In one sentence without a key; the error is not retryable."""
    for name, value in environment.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(ModelRequestError, match=told) as raised:
        await ask(client)
    assert raised.value.__cause__ is None
    assert KEY not in str(raised.value)
    assert server.requests == []


NAMED = Endpoint(name="gpu", base_url="http://localhost:1/v1", api_key_env="GPU_KEY")


@pytest.mark.parametrize("keyless", [OpenAIClient(), OpenAIClient(NAMED), AnthropicClient(NAMED)])
async def test_without_a_key_no_http_client_is_created(monkeypatch: pytest.MonkeyPatch, keyless: SdkClient) -> None:
    """Nobody would close it, and each request would create another one."""
    created: list[object] = []
    for package in ("openai", "anthropic"):
        monkeypatch.setattr(f"{package}.DefaultAsyncHttpxClient", lambda **options: created.append(options))
    monkeypatch.setenv("OPENAI_API_KEY", "")
    monkeypatch.delenv("GPU_KEY", raising=False)
    with pytest.raises(ModelRequestError, match="There is no key"):
        await keyless.model_names()
    assert created == []


async def test_a_refused_connection_raises_unavailable(
    client: OpenAIClient, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with OpenAIServer() as gone:
        monkeypatch.setenv("OPENAI_BASE_URL", gone.base_url)
    with pytest.raises(Unavailable, match=r"the connection to 127\.0\.0\.1 failed \(ConnectError"):
        await ask(client)


@pytest.mark.parametrize(
    ("env", "message", "hint"),
    [
        ("GPU_KEY", "Incorrect API key provided.", " (Is GPU_KEY right?)"),
        (None, "Incorrect API key provided.", ""),
        ("GPU_KEY", "litellm.AuthenticationError: AnthropicException - invalid x-api-key", ""),
        ("GPU_KEY", "openai error: Incorrect API key provided: sk-1", ""),
    ],
    ids=["ours", "no key", "of LiteLLM's upstream", "of Portkey's upstream"],
)
async def test_a_hint_is_about_our_own_key_only(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, env: str | None, message: str, hint: str
) -> None:
    monkeypatch.setenv("GPU_KEY", KEY)
    client = OpenAIClient(Endpoint(name="gpu", base_url=server.base_url, api_key_env=env))
    try:
        found = await error(server, client, Failure(status=401, body=openai_error(message)))
    finally:
        await client.close()
    assert found.message == f"The model's endpoint refused the request (401): {message}{hint}"
