"""`ProviderSuite` runs against the built-in providers and the example of docs/own-provider.md, and finds what it is for."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from mulligan.activities.models.available_providers import AvailableProviders
from mulligan.activities.models.protocol import Provider, Reply, Request
from mulligan.endpoint import Endpoint
from mulligan.script import Call, Say, Script
from mulligan.testing import FakeAnswer, ProviderSuite
from mulligan.values import Message
from tests.support.openai_server import Failure, OpenAIServer, Turn
from tests.support.openai_turn import Usage

ACME = re.search(
    r"```python\n(import json\n\nimport httpx2.*?)```",
    (Path(__file__).parents[2] / "docs/own-provider.md").read_text(),
    re.DOTALL,
)


class OpenAIEndpoint:
    """The strict scripted server as a FakeEndpoint."""

    model = "m"

    def __init__(self, server: OpenAIServer, prefix: str) -> None:
        self._server = server
        base_url = f"{server.base_url}beta" if prefix == "google" else server.base_url
        endpoint = Endpoint(name="fake", base_url=base_url)
        self.provider: Provider = AvailableProviders({}, {"fake": endpoint}).of(f"{prefix}@fake:m")

    def answer(self, answer: FakeAnswer) -> None:
        turn = Turn(
            answer.text,
            calls=[(call.name, call.arguments, call.id) for call in answer.calls],
            usage=Usage(answer.input_tokens, answer.output_tokens),
        )
        if answer.is_cut_off:
            turn = replace(turn, finish_reason="length")
        self._server.script("m", lambda body, nth: turn)

    def fail(self, status: int, retry_after: float | None = None) -> None:
        headers = {} if retry_after is None else {"retry-after": f"{retry_after:g}"}
        self._server.script("m", lambda body, nth: Turn(failure=Failure(status, headers=headers)))

    def hang(self) -> None:
        self._server.script("m", lambda body, nth: Turn(delay=600))

    def send_garbage(self) -> None:
        self._server.script("m", lambda body, nth: Turn(failure=Failure(200, "<html>starting</html>")))


class TestOpenAIChat(ProviderSuite):
    prefix = "openai-chat"

    @asynccontextmanager
    async def open_endpoint(self) -> AsyncIterator[OpenAIEndpoint]:
        async with OpenAIServer() as server:
            yield OpenAIEndpoint(server, self.prefix)
            assert server.refusals == []


class TestOpenAIResponses(TestOpenAIChat):
    prefix = "openai"


class TestAnthropic(TestOpenAIChat):
    prefix = "anthropic"


class TestGoogle(TestOpenAIChat):
    prefix = "google"


class ScriptedEndpoint:
    """A script as a FakeEndpoint."""

    model = "s"

    def __init__(self) -> None:
        self._say = Say("ok")
        self.provider: Provider = AvailableProviders({"s": Script("s", [lambda messages: self._say])}).of("scripted:s")

    def answer(self, answer: FakeAnswer) -> None:
        calls = [Call(call.name, call.arguments, id=call.id) for call in answer.calls]
        self._say = Say(answer.text, calls=calls)

    def fail(self, status: int, retry_after: float | None = None) -> None:
        raise NotImplementedError

    def hang(self) -> None:
        raise NotImplementedError

    def send_garbage(self) -> None:
        raise NotImplementedError


class TestScripted(ProviderSuite):
    has_http = False

    @asynccontextmanager
    async def open_endpoint(self) -> AsyncIterator[ScriptedEndpoint]:
        yield ScriptedEndpoint()


class AcmeEndpoint:
    """A server of the API that the example of docs/own-provider.md speaks."""

    model = "large"

    def __init__(self, create: Callable[[Endpoint], Provider]) -> None:
        self._create = create
        self._respond: Callable[[], web.Response] | None = None
        app = web.Application()
        app.router.add_post("/v1/generate", self._handle)
        self.runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)

    async def start(self) -> None:
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        host, port = self.runner.addresses[0][:2]
        self.provider = self._create(Endpoint(name="fake", base_url=f"http://{host}:{port}/v1"))

    async def _handle(self, request: web.Request) -> web.Response:
        json.loads(await request.read())
        if self._respond is None:
            await asyncio.sleep(600)
        assert self._respond is not None
        return self._respond()

    def answer(self, answer: FakeAnswer) -> None:
        body = {
            "text": answer.text,
            "calls": [call.model_dump() for call in answer.calls],
            "stop": "length" if answer.is_cut_off else "end",
            "tokens": {"in": answer.input_tokens, "out": answer.output_tokens},
        }
        self._respond = lambda: web.json_response(body)

    def fail(self, status: int, retry_after: float | None = None) -> None:
        headers = {} if retry_after is None else {"retry-after": f"{retry_after:g}"}
        self._respond = lambda: web.Response(status=status, headers=headers, text="no")

    def hang(self) -> None:
        self._respond = None

    def send_garbage(self) -> None:
        self._respond = lambda: web.Response(text="<html>")


@pytest.fixture
def _no_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mulligan.provider_plugin._plugins", {})


def acme() -> Any:
    assert ACME is not None
    scope: dict[str, Any] = {"__name__": "acme"}
    exec(ACME[1], scope)
    return scope["Acme"]


@pytest.mark.usefixtures("_no_plugin")
class TestTheExampleOfThePage(ProviderSuite):
    @asynccontextmanager
    async def open_endpoint(self) -> AsyncIterator[AcmeEndpoint]:
        endpoint = AcmeEndpoint(acme())
        await endpoint.start()
        yield endpoint
        await endpoint.runner.cleanup()


class _Faulty:
    """A provider with the usual mistakes."""

    name = "faulty"

    def __init__(self) -> None:
        self._encoded = 0

    def encode(self, message: Message) -> list[Any]:
        self._encoded += 1
        return [f"{self._encoded}: {message.text}"]

    async def complete(self, request: Request) -> Reply:
        raise NotImplementedError

    async def close(self) -> None:
        raise RuntimeError("closed")


FAULTS = [
    "test_encoding_is_pure_and_leaves_the_beginning_unchanged",
    "test_it_can_be_closed_before_its_first_request_and_twice",
]


@pytest.mark.parametrize("name", FAULTS)
def test_the_suite_fails_for_a_faulty_provider(name: str) -> None:
    class Suite(ProviderSuite):
        @asynccontextmanager
        async def open_endpoint(self) -> AsyncIterator[Any]:
            endpoint = ScriptedEndpoint()
            endpoint.provider = _Faulty()  # type: ignore[assignment]
            yield endpoint

    with pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
        getattr(Suite(), name)()


def test_the_suite_fails_for_a_provider_with_half_a_part() -> None:
    class Suite(ProviderSuite):
        @asynccontextmanager
        async def open_endpoint(self) -> AsyncIterator[Any]:
            endpoint = ScriptedEndpoint()
            vars(endpoint.provider)["batch"] = object()
            yield endpoint

    with pytest.raises(AssertionError, match=r"batch: .*may_take_plain.* missing"):
        Suite().test_a_part_that_it_has_is_whole()
