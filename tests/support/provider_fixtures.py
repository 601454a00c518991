"""The providers with the strict scripted server, and builders of messages and answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mulligan.activities.models.anthropic._anthropic_client import AnthropicClient
from mulligan.activities.models.anthropic.anthropic import Anthropic
from mulligan.activities.models.fit_content import encoded
from mulligan.activities.models.google._google_client import GoogleClient
from mulligan.activities.models.google.google import Google
from mulligan.activities.models.openai._openai_client import OpenAIClient
from mulligan.activities.models.openai.openai_chat import OpenAIChat
from mulligan.activities.models.openai.openai_responses import OpenAIResponses
from mulligan.activities.models.protocol import Provider, Reply, Request
from mulligan.values import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from mulligan.wire.agent_facts import Definition, ToolDefinition
from tests.support.openai_server import Failure, OpenAIServer, Turn

SEARCH = ToolDefinition(name="search", description="Search.", parameters={"type": "object", "properties": {}})
GO = UserMessage(role="user", text="Go.")
APIS = ["openai", "openai-chat"]


class Bench:
    """A strict server with all providers as its clients."""

    def __init__(self, server: OpenAIServer) -> None:
        self.server = server
        self.client = OpenAIClient()
        self.providers: dict[str, Provider] = {
            "openai": OpenAIResponses(self.client),
            "openai-chat": OpenAIChat(self.client),
            "anthropic": Anthropic(AnthropicClient()),
            "google": Google(GoogleClient()),
        }

    @classmethod
    @asynccontextmanager
    async def open(cls, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
        """A server that the environment points to, and a client that is closed at the end."""
        async with OpenAIServer() as server:
            for name, value in server.environment().items():
                monkeypatch.setenv(name, value)
            bench = cls(server)
            yield bench
            for provider in bench.providers.values():
                await provider.close()

    async def ask(
        self, api: str, messages: Sequence[Message] = (GO,), *, tools: Sequence[ToolDefinition] = (SEARCH,), **more: Any
    ) -> Reply:
        """Send one request as `call_model` does."""
        return await self.providers[api].complete(self.request(api, messages, tools=tools, **more))

    def request(
        self, api: str, messages: Sequence[Message] = (GO,), *, tools: Sequence[ToolDefinition] = (SEARCH,), **more: Any
    ) -> Request:
        """The request of `ask`. `hosted`: tools that providers run."""
        provider = self.providers[api]
        return Request(
            model="m",
            definition=Definition(
                instructions=more.pop("instructions", "Be kind."),
                tools=list(tools),
                output=more.pop("output", None),
                provider_tools=more.pop("hosted", []),
            ),
            items=[item for message in messages for item in encoded(message, provider)],
            messages=messages,
            **more,
        )

    async def answer(self, api: str, turn: Turn, **more: Any) -> Reply:
        """The reply to one scripted turn."""
        self.server.script("m", [turn])
        return await self.ask(api, **more)

    async def ask_ok(self, api: str, messages: Sequence[Message], **more: Any) -> Reply:
        """The reply to a request that the server answers with a text, whatever was answered before."""
        self.server.script("m", lambda body, nth: Turn("ok"))
        return await self.ask(api, messages, **more)

    async def body(self, api: str, body: dict[str, Any], **more: Any) -> Reply:
        """The reply to a scripted response body."""
        return await self.answer(api, Turn(failure=Failure(status=200, body=body)), **more)

    @property
    def sent(self) -> dict[str, Any]:
        """The newest request."""
        return self.server.requests[-1].json


def assistant_message(text: str = "", *calls: ToolCall, data: dict[str, Any] | None = None) -> AssistantMessage:
    return AssistantMessage(role="assistant", text=text, tool_calls=list(calls), provider_data=data)


def tool_call(call_id: str, name: str = "search", arguments: str = "{}") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def result(call_id: str, text: str = "found") -> ToolMessage:
    return ToolMessage(role="tool", call_id=call_id, name="search", text=text)


def reasoning_item(item_id: str = "rs_1", **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": item_id, "summary": [], "encrypted_content": "gAAA", **more}


def chat_call(call_id: str = "c", name: str = "search", arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def function_call(call_id: str = "c", name: str = "search", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def completion(message: Any, **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, **more}]}
