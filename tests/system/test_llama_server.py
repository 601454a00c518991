"""llama.cpp's own server: what its chat template refuses is learned from its words, and tools that it drops are noticed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mulligan.activities.models.available_providers import AvailableProviders
from mulligan.activities.models.openai.openai_chat import OpenAIChat
from mulligan.activities.models.protocol import Request
from mulligan.endpoint import Endpoint
from mulligan.values import Message
from mulligan.wire.agent_facts import Definition
from tests.support.llama_server import llama_server, program
from tests.support.provider_fixtures import GO, assistant_message, result, tool_call

TEMPLATE = """{%- for message in messages if message.role in ('user', 'assistant') and not message.tool_calls -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') -}}
{%- endif -%}
<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n
{%- endfor -%}<|im_start|>assistant\n"""
"""As that of Gemma and of older models of Mistral: it knows no tools, and refuses roles that do not alternate."""
pytestmark = pytest.mark.skipif(program() is None, reason="not cached: python -m tests.support.llama_server builds it")


@pytest.fixture(scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenAIChat]:
    async with llama_server(tmp_path_factory.mktemp("llama"), TEMPLATE) as url:
        providers = AvailableProviders({}, {"llama": Endpoint(name="llama", base_url=url)})
        found = providers.of("openai-chat@llama:small")
        assert isinstance(found, OpenAIChat)
        yield found
        await providers.close()


async def test_a_server_whose_template_has_no_tools_says_so(provider: OpenAIChat) -> None:
    assert await provider.drops_tools()


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_conversation_that_the_template_refuses_is_sent_as_it_takes_it(
    provider: OpenAIChat, is_streamed: bool
) -> None:
    """It is refused with the status 500, as templates' errors are, and learned once."""
    messages: list[Message] = [GO, GO, assistant_message("Hm.", tool_call("c1")), result("c1"), GO]
    pieces: list[str] = []
    reply = await provider.complete(
        Request(
            model="small",
            definition=Definition(instructions="Be brief.", tools=[]),
            items=[item for message in messages for item in provider.encode(message)],
            messages=messages,
            settings={"max_tokens": 8},
            on_text=pieces.append if is_streamed else None,
        )
    )
    assert reply.adapted == ["roles_alternate"]
    assert reply.usage.output_tokens > 0
    assert "".join(pieces) == (reply.text if is_streamed else "")
