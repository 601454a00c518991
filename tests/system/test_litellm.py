"""LiteLLM's proxy between our providers and the strict server: answers, calls, reasoning, errors, broken streams.

Whole runs as well, before Anthropic's, Google's and Amazon's APIs, which refuse what the services refuse.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from mulligan import Agent, Model
from mulligan.activities.models.available_providers import AvailableProviders
from mulligan.activities.models.protocol import Reply, Request, Unavailable
from mulligan.endpoint import Endpoint
from mulligan.errors import ModelRequestError
from mulligan.values import Message
from mulligan.wire.agent_facts import Definition
from mulligan.worker.loading import load_agents
from tests.support.litellm_proxy import KEY, litellm_proxy
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import Failure, OpenAIServer, Reasoning, Turn
from tests.support.provider_fixtures import GO, SEARCH, assistant_message, result
from tests.unit.test_zoo import BEFORE, OPTIONS, RAN, broken, in_turn, listing, nothing, pay, photo

APIS = ["openai-chat", "openai"]
UPSTREAMS = {
    "claude-sonnet-4-5": "claude-sonnet-4-5",
    "gemini-3-pro-preview": "gemini-3-pro-preview",
    "bedrock-claude": "anthropic.claude-sonnet-4-5-20250929-v1:0",
}
"""The models of the proxy that are not OpenAI's, and their names at the services."""
CALLS = [("search", '{"q": "x"}', "call_1"), ("search", '{"q": ', "call_2"), ("no_such_tool", "{}", "call_3")]


@dataclass
class Gateway:
    """The proxy, the server behind it, and the providers whose endpoint it is."""

    upstream: OpenAIServer
    providers: AvailableProviders
    base_url: str

    async def ask(
        self, api: str, model: str, messages: Sequence[Message] = (GO,), on_text: Callable[[str], None] | None = None
    ) -> Reply:
        provider = self.providers.of(f"{api}@gateway:{model}")
        items = [item for message in messages for item in provider.encode(message)]
        definition = Definition(instructions="Be kind.", tools=[SEARCH])
        return await provider.complete(Request(model, definition, items, messages, timeout=60, on_text=on_text))


@pytest.fixture(scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    patch = pytest.MonkeyPatch()
    patch.setenv("GATEWAY_KEY", KEY)
    async with (
        OpenAIServer() as upstream,
        litellm_proxy(upstream.base_url, tmp_path_factory.mktemp("litellm")) as base_url,
    ):
        endpoint = Endpoint(name="gateway", base_url=base_url, api_key_env="GATEWAY_KEY")
        providers = AvailableProviders({}, {"gateway": endpoint})
        yield Gateway(upstream, providers, base_url)
        await providers.close()
    patch.undo()


def new_model(gateway: Gateway, script: Any) -> str:
    name = f"m-{uuid.uuid4().hex[:8]}"
    gateway.upstream.script(name, script)
    return name


def ignore(piece: str) -> None:
    pass


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_conversation_with_calls_and_reasoning_passes_through_the_gateway(
    gateway: Gateway, api: str, is_streamed: bool
) -> None:
    """Calls arrive as the model wrote them; the strict server accepts what the gateway makes of the answers to them."""
    reasoning = [Reasoning()] if api == "openai" else []
    turns = [Turn("Let me see.", calls=CALLS, reasoning=reasoning), Turn("Done, ☃.")]
    model = new_model(gateway, turns)
    pieces: list[str] = []
    on_text = pieces.append if is_streamed else None
    reply = await gateway.ask(api, model, on_text=on_text)
    assert [(call.name, call.arguments, call.id) for call in reply.calls] == CALLS
    assert (reply.text, reply.finish_reason) == ("Let me see.", "tool_calls")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (10, 5)
    messages: list[Message] = [GO, assistant_message(reply.text, *reply.calls, data=reply.provider_data)]
    messages += [result(call.id) for call in reply.calls]
    assert (await gateway.ask(api, model, messages, on_text)).text == "Done, ☃."
    assert "".join(pieces) == ("Let me see.Done, ☃." if is_streamed else "")
    sent = gateway.upstream.requests_of(model)
    assert [request.refusal for request in sent] == [None, None]
    if api == "openai-chat":
        assert [bool(request.json.get("stream")) for request in sent] == [is_streamed] * 2
    else:  # where the gateway does not know a model, it requests the whole response and streams that
        assert any(item.get("type") == "reasoning" for item in sent[-1].conversation)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("status", "kind"), [(400, ModelRequestError), (401, ModelRequestError), (429, Unavailable), (500, Unavailable), (503, Unavailable)]
)  # fmt: skip
async def test_an_error_behind_the_gateway_keeps_its_status(
    gateway: Gateway, api: str, is_streamed: bool, status: int, kind: type[Exception]
) -> None:
    """Each request is sent once: neither the gateway nor the provider retries."""
    model = new_model(gateway, [Turn(failure=Failure(status))])
    with pytest.raises(kind, match=f"scripted failure {status}") as raised:
        await gateway.ask(api, model, on_text=ignore if is_streamed else None)
    assert getattr(raised.value, "status", None) == status
    assert KEY not in str(raised.value)
    assert len(gateway.upstream.requests_of(model)) == 1


async def test_streams_that_fail_before_a_piece_are_tried_once_without_streaming(gateway: Gateway) -> None:
    """The server has answered 200 by then. The gateway reads its first event, and answers 500 with what that says."""
    error = {"message": "this model cannot stream here", "type": "server_error", "param": None, "code": "500"}
    model = new_model(gateway, lambda body, nth: Turn("ok", events=[{"error": error}]))
    with pytest.raises(Unavailable, match="this model cannot stream here"):
        await gateway.ask("openai-chat", model, on_text=ignore)
    assert (await gateway.ask("openai-chat", model, on_text=ignore)).text == "ok"
    assert [bool(request.json.get("stream")) for request in gateway.upstream.requests_of(model)] == [True, True, False]


@pytest.fixture(scope="module")
async def lab(gateway: Gateway) -> AsyncIterator[MemoryLab]:
    """A worker whose agent's models are at the gateway, in three APIs."""
    gateway.upstream.google.takes_underscores = True
    given: dict[str, Any] = {"base_url": gateway.base_url, "api_key_env": "GATEWAY_KEY"}
    messages_api = Model("anthropic@claude:none", **{**given, "base_url": gateway.base_url.removesuffix("/v1")})
    models = [*(Model(f"{api}@gateway:none", **given) for api in APIS), messages_api]
    clerk = Agent(name="clerk", tools=[photo, nothing, pay, broken, listing], **{**OPTIONS, "model": models})
    async with memory_lab(gateway.upstream, load_agents([clerk], [])) as at:
        yield at


@pytest.mark.parametrize("api", ["openai-chat@gateway", "openai@gateway", "anthropic@claude"])
@pytest.mark.parametrize("model", UPSTREAMS)
async def test_a_run_before_a_service_that_is_not_openais(lab: MemoryLab, model: str, api: str) -> None:
    """Mistakes, pictures, empty texts and odd names of arguments: each call runs once, and signatures come back."""
    RAN.clear()
    thoughts = [Reasoning(summary=["Let me see."])]
    top = "top" if api.startswith("anthropic") else "$top"  # the name that the model was told
    turns = [
        Turn(calls=[("pay", '{"amount": "much"}'), ("no_such_tool", "{}"), ("broken", "{}")], reasoning=thoughts),
        Turn("So.", calls=[("pay", '{"amount": 5}'), ("photo", "{}"), ("nothing", "{}")], reasoning=thoughts),
        Turn(calls=[("list_items", f'{{"{top}": 3}}')], reasoning=thoughts),
        Turn("done"),
    ]
    lab.model.script(UPSTREAMS[model], in_turn(*turns))
    before = len(lab.model.requests)
    ran = await lab.run_input({"agent": "clerk", "model": f"{api}:{model}", "messages": BEFORE})
    refused = [each.refusal.message for each in lab.model.requests[before:] if each.refusal]
    assert ran.error is None, refused
    assert (ran.result["status"], ran.result["output"]) == ("completed", "done"), refused
    assert sorted(map(str, RAN)) == sorted(map(str, ["broken", 5, "photo", "nothing", {"$top": 3}]))
    assert len(set(refused)) == len(refused)
