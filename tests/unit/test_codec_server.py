"""What the codec server answers: who may call it, with which headers, and what it says of a request that it cannot carry out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads

from mulligan.client.codec_server import _handler, codec_server
from mulligan.client.encryption import EncryptionCodec
from mulligan.client.plain_http_server import Request, Response
from mulligan.errors import DeclarationError

UI, TOKEN = "http://localhost:8233", "0123456789abcdef"
CODEC = EncryptionCodec({"a": bytes(32)})
PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'"sesame"')
BODY = json_format.MessageToJson(Payloads(payloads=[PLAIN])).encode()
NO_STORE = {"Cache-Control": "no-store"}
TO_THE_UI = {
    **NO_STORE, "Access-Control-Allow-Origin": UI, "Access-Control-Allow-Credentials": "true", "Vary": "Origin",
}  # fmt: skip


async def answer(
    method: str = "POST", path: str = "/encode", body: bytes | None = BODY, token: str = "", **headers: str
) -> Response:
    return await _handler(CODEC, [UI], token)(Request(method, path, headers, body))


def said(response: Response) -> str:
    return str(json.loads(response.text)["error"])


@pytest.mark.parametrize("path", ["", "/default", "/"])
async def test_what_was_encoded_is_decoded_again(path: str) -> None:
    """Temporal's programs allow an endpoint with a slash at its end, and one with the namespace."""
    encoded = await answer(path=f"{path}/encode")
    assert (encoded.status, encoded.content_type) == (200, "application/json; charset=utf-8")
    assert "sesame" not in encoded.text
    [secret] = json_format.Parse(encoded.text, Payloads()).payloads
    assert secret.metadata["encoding"] == b"binary/encrypted"
    decoded = await answer(path=f"{path}/decode", body=encoded.text.encode())
    assert [*json_format.Parse(decoded.text, Payloads()).payloads] == [PLAIN]


async def test_pages_of_the_ui_may_call_it_and_others_may_not() -> None:
    """No answer may be kept by a cache, and each one with an origin is for that origin only."""
    assert (await answer()).headers == NO_STORE
    assert (await answer(origin=UI)).headers == TO_THE_UI
    refused = await answer(origin="http://evil.example")
    assert (refused.status, refused.headers) == (403, NO_STORE)
    assert "--ui-origin" in said(refused)


async def test_a_preflight_request_needs_no_token_and_says_what_may_be_sent() -> None:
    allowed = await answer("OPTIONS", token=TOKEN, origin=UI)
    assert (allowed.status, allowed.text) == (204, "")
    assert allowed.headers == {
        **TO_THE_UI,
        "Access-Control-Allow-Methods": "POST",
        "Access-Control-Allow-Headers": "authorization, authorization-extras, content-type, x-namespace",
        "Access-Control-Max-Age": "600",
    }
    assert (await answer("OPTIONS", origin="http://evil.example")).status == 403


@pytest.mark.parametrize("sent", ["", TOKEN, "Bearer ", f"Bearer {TOKEN}x", f"bearer {TOKEN}", "Bearer é"])
async def test_a_call_without_the_token_is_refused(sent: str) -> None:
    refused = await answer(token=TOKEN, origin=UI, authorization=sent)
    assert (refused.status, refused.headers) == (401, {**TO_THE_UI, "WWW-Authenticate": "Bearer"})
    assert "Bearer" in said(refused)


async def test_a_call_with_the_token_is_carried_out() -> None:
    assert (await answer(token=TOKEN, authorization=f"Bearer {TOKEN}")).status == 200
    assert (await answer("GET", "/", token=TOKEN)).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/", None, 200),
        ("HEAD", "/", None, 200),
        ("POST", "/", BODY, 405),
        ("GET", "/decode", None, 405),
        ("PUT", "/encode", BODY, 405),
        ("POST", "/other", BODY, 404),
        ("GET", "/a/b/decode", None, 404),
        ("POST", "/decode", None, 413),
        ("POST", "/decode", b"{", 400),
        ("POST", "/decode", b'{"payloads": 1}', 400),
        ("POST", "/decode", b"[" * 100_000, 400),
        ("POST", "/encode", BODY, 200),
    ],
)
async def test_each_request_has_its_status(method: str, path: str, body: bytes | None, status: int) -> None:
    response = await answer(method, path, body)
    assert response.status == status
    assert response.headers == NO_STORE
    if status != 200:
        assert said(response).endswith(".")


async def test_what_cannot_be_decrypted_is_said_with_the_reason() -> None:
    [foreign] = await EncryptionCodec({"b": bytes(32)}).encode([PLAIN])
    response = await answer(path="/decode", body=json_format.MessageToJson(Payloads(payloads=[foreign])).encode())
    assert response.status == 422
    assert "the key 'b'" in said(response)


async def test_other_machines_need_a_token() -> None:
    with pytest.raises(DeclarationError, match="needs a token"):
        async with codec_server(CODEC, "0.0.0.0", 0, []):
            pass
    async with codec_server(CODEC, "127.0.0.1", 0, []) as url:
        assert url.startswith("http://127.0.0.1:")


async def test_an_address_that_is_taken_is_a_sentence() -> None:
    async with codec_server(CODEC, "127.0.0.1", 0, []) as url:
        port: Any = int(url.rpartition(":")[2])
        with pytest.raises(DeclarationError, match=f"nothing can listen at 127.0.0.1 port {port}"):
            async with codec_server(CODEC, "127.0.0.1", port, []):
                pass
