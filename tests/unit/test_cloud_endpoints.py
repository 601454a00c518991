"""Endpoints of the kinds `azure`, `bedrock` and `vertex`: path, headers and signature, as the clouds document them."""

from __future__ import annotations

import binascii
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from mulligan.activities.models.anthropic._anthropic_client import AnthropicClient
from mulligan.activities.models.anthropic.anthropic import Anthropic
from mulligan.activities.models.google._google_client import GoogleClient
from mulligan.activities.models.google.google import Google
from mulligan.activities.models.openai._openai_client import OpenAIClient
from mulligan.activities.models.openai.openai_chat import OpenAIChat
from mulligan.activities.models.openai.openai_responses import OpenAIResponses
from mulligan.activities.models.protocol import Reply, Request
from mulligan.endpoint import Endpoint, read_endpoints
from mulligan.errors import DeclarationError, ModelRequestError
from mulligan.wire.agent_facts import Definition
from tests.support.aws_event_stream import aws_frame
from tests.support.provider_fixtures import GO
from tests.unit.test_paused_answers import events, message, text

MODEL = "anthropic.claude-sonnet-5-v1:0"
CHAT = {"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]}
RESPONSE = {"status": "completed", "output": [SAID], "usage": {"input_tokens": 1}}
MESSAGE = message(text("Hello."))
CONTENT = {"candidates": [{"content": {"parts": [{"text": "Hello."}]}, "finishReason": "STOP"}]}


class Cloud:
    """A server that records requests, and gives tokens as Google does."""

    def __init__(self) -> None:
        self.requests: list[tuple[web.BaseRequest, dict[str, Any]]] = []
        self.answer: Any = {}
        self.url = ""

    async def handle(self, request: web.BaseRequest) -> web.Response:
        if request.path == "/token":
            return web.json_response({"access_token": "google-token", "expires_in": 3600, "token_type": "Bearer"})
        body = await request.read()
        self.requests.append((request, json.loads(body or b"{}")))
        if isinstance(self.answer, bytes):
            return web.Response(body=self.answer, content_type="application/vnd.amazon.eventstream")
        return web.json_response(self.answer)

    @property
    def newest(self) -> tuple[web.BaseRequest, dict[str, Any]]:
        return self.requests[-1]


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    cloud = Cloud()
    runner = web.ServerRunner(web.Server(cloud.handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    cloud.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield cloud
    await runner.cleanup()


async def ask(provider: Any, model: str = "m", **more: Any) -> Reply:
    request = Request(
        model=model,
        definition=Definition(instructions="Be kind.", tools=[]),
        items=provider.encode(GO),
        messages=[GO],
        prompt_cache_key="k",
        **more,
    )
    try:
        reply: Reply = await provider.complete(request)
        return reply
    finally:
        await provider.close()


@pytest.mark.parametrize("base", ["", "/openai"])
async def test_azure_with_a_version(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    monkeypatch.setenv("AZURE_KEY", "secret")
    endpoint = Endpoint(
        name="az", kind="azure", base_url=cloud.url + base, api_key_env="AZURE_KEY", api_version="2026-05-01"
    )
    for provider, answer, path in (
        (OpenAIChat(OpenAIClient(endpoint)), CHAT, "/openai/deployments/m/chat/completions"),
        (OpenAIResponses(OpenAIClient(endpoint)), RESPONSE, "/openai/responses"),
    ):
        cloud.answer = answer
        assert (await ask(provider)).text == "Hello."
        request, body = cloud.newest
        assert (request.path, dict(request.query)) == (path, {"api-version": "2026-05-01"})
        assert (request.headers["api-key"], request.headers.get("authorization")) == ("secret", None)
        assert body["model"] == "m"


@pytest.mark.parametrize("version", [None, "2026-05-01"])
async def test_azure_with_a_token_of_entra(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    monkeypatch.setenv("AZURE_OPENAI_AD_TOKEN", "entra-token")
    base = cloud.url if version else f"{cloud.url}/openai/v1"
    cloud.answer = RESPONSE
    endpoint = Endpoint(name="az", kind="azure", base_url=base, api_version=version)
    assert (await ask(OpenAIResponses(OpenAIClient(endpoint)))).text == "Hello."
    request, _ = cloud.newest
    assert request.path == ("/openai/responses" if version else "/openai/v1/responses")
    assert request.headers["authorization"] == "Bearer entra-token"


async def test_azure_without_a_login_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_OPENAI_AD_TOKEN", raising=False)
    endpoint = Endpoint(name="az", kind="azure", base_url="http://127.0.0.1:1")
    with pytest.raises(ModelRequestError, match="AZURE_OPENAI_AD_TOKEN"):
        await ask(OpenAIResponses(OpenAIClient(endpoint)))


def frame(event: dict[str, Any]) -> bytes:
    """An event of AWS's binary streams: headers, and Anthropic's event in base64."""
    data = binascii.b2a_base64(json.dumps(event).encode(), newline=False).decode()
    return aws_frame("chunk", {"bytes": data})


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_bedrock_signs_requests(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, is_streamed: bool) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-secret")
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    cloud.answer = (
        b"".join(frame(each) for each in events(MESSAGE) if isinstance(each, dict)) if is_streamed else MESSAGE
    )
    endpoint = Endpoint(name="aws", kind="bedrock", base_url=cloud.url, region="eu-central-1")
    provider, pieces = Anthropic(AnthropicClient(endpoint)), list[str]()
    assert (await ask(provider, MODEL, on_text=pieces.append if is_streamed else None)).text == "Hello."
    assert "".join(pieces) == ("Hello." if is_streamed else "")
    request, body = cloud.newest
    path = "/model/anthropic.claude-sonnet-5-v1:0/" + ("invoke-with-response-stream" if is_streamed else "invoke")
    assert request.path == path
    assert body["anthropic_version"]
    assert not body.keys() & {"model", "stream", "cache_control"}
    assert body["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    given = request.headers["authorization"]
    assert "/eu-central-1/bedrock/aws4_request" in given
    signed = given.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    again = AWSRequest(
        method="POST",
        url=cloud.url + request.raw_path,
        data=await request.read(),
        headers={name: request.headers[name] for name in signed if name not in ("host", "x-amz-date")},
    )
    again.context["timestamp"] = request.headers["x-amz-date"]
    again.headers["X-Amz-Date"] = request.headers["x-amz-date"]
    auth = SigV4Auth(Credentials("AKIDEXAMPLE", "aws-secret"), "bedrock", "eu-central-1")
    text_to_sign = auth.string_to_sign(again, auth.canonical_request(again))
    assert given.endswith(f"Signature={auth.signature(text_to_sign, again)}")


async def test_bedrock_with_a_key(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEDROCK_KEY", "secret")
    cloud.answer = MESSAGE
    endpoint = Endpoint(
        name="aws", kind="bedrock", base_url=cloud.url, region="eu-central-1", api_key_env="BEDROCK_KEY"
    )
    await ask(Anthropic(AnthropicClient(endpoint)), MODEL)
    assert cloud.newest[0].headers["authorization"] == "Bearer secret"


@pytest.fixture
def google_login(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A service account whose tokens come from the local server."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account", "project_id": "shop", "private_key_id": "1", "private_key": key.decode(),
        "client_email": "a@shop.iam", "client_id": "1", "token_uri": f"{cloud.url}/token",
    }  # fmt: skip
    file = tmp_path / "account.json"
    file.write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))


@pytest.mark.usefixtures("google_login")
async def test_vertex_serves_anthropic_and_google(cloud: Cloud) -> None:
    endpoint = Endpoint(name="gcp", kind="vertex", base_url=cloud.url, project="shop", region="europe-west1")
    place = "/projects/shop/locations/europe-west1/publishers"
    for provider, answer, path in (
        (Anthropic(AnthropicClient(endpoint)), MESSAGE, f"{place}/anthropic/models/m:rawPredict"),
        (Google(GoogleClient(endpoint)), CONTENT, f"/v1beta1{place}/google/models/m:generateContent"),
    ):
        cloud.answer = answer
        assert (await ask(provider)).text == "Hello."
        request, body = cloud.newest
        assert request.path == path
        assert request.headers["authorization"] == "Bearer google-token"
        if "anthropic" in path:
            assert body["anthropic_version"]


@pytest.mark.usefixtures("google_login")
async def test_doctor_asks_the_clouds_for_a_login(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    vertex = Endpoint(name="gcp", kind="vertex", base_url=cloud.url, project="shop", region="europe-west1")
    assert await Anthropic(AnthropicClient(vertex)).model_names() is None
    assert await Google(GoogleClient(vertex)).model_names() is None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-secret")
    bedrock = Endpoint(name="aws", kind="bedrock", base_url=cloud.url, region="eu-central-1")
    assert await Anthropic(AnthropicClient(bedrock)).model_names() is None
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/file")
    for provider in (Anthropic(AnthropicClient(vertex)), Google(GoogleClient(vertex))):
        with pytest.raises(ModelRequestError, match="no login"):
            await provider.model_names()


async def test_a_kind_that_serves_other_models_is_refused() -> None:
    endpoint = Endpoint(name="aws", kind="bedrock", region="eu-central-1")
    with pytest.raises(ModelRequestError, match="'aws' is of the kind 'bedrock', which serves no such models"):
        await ask(OpenAIChat(OpenAIClient(endpoint)))


FAULTS = [
    ('kind = "aws"', "kind is 'aws'; known are azure, bedrock, vertex"),
    ('kind = "azure"', "needs base_url"),
    ('kind = "bedrock"', "needs region"),
    ('kind = "vertex"\nproject = "p"', "needs project and region"),
    ('kind = "bedrock"\nregion = "eu/../x"', "region is 'eu/../x', which no region can be"),
    ('kind = "bedrock"\nregion = 7', "region is '7', which no region can be"),
    ('kind = "bedrock"\nregion = "r"\nproject = "p"', "project is not for an endpoint of the kind 'bedrock'"),
    ('base_url = "http://h"\nregion = "r"', "region is not for an endpoint of the kind None"),
    ('kind = "vertex"\nproject = "p"\nregion = "r"\napi_key_env = "K"', "GOOGLE_APPLICATION_CREDENTIALS"),
]


@pytest.mark.parametrize(("table", "says"), FAULTS)
def test_a_fault_in_the_file_of_endpoints_is_named(tmp_path: Path, table: str, says: str) -> None:
    file = tmp_path / "endpoints.toml"
    file.write_text(f"[cloud]\n{table}\n")
    with pytest.raises(DeclarationError, match=says):
        read_endpoints(str(file))
