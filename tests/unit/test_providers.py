"""Encoding of messages, instructions and tools by the OpenAI providers; the list of providers."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan.activities.models._legal_calls import legal_id
from mulligan.activities.models.available_providers import AvailableProviders
from mulligan.provider_plugin import BUILT_IN
from mulligan.values import AssistantMessage, Message, ToolMessage
from tests.support.openai_server import Reasoning, Turn
from tests.support.provider_fixtures import (
    APIS,
    GO,
    SEARCH,
    Bench,
    assistant_message,
    chat_call,
    function_call,
    reasoning_item,
    result,
    tool_call,
)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Bench.open(monkeypatch) as bench:
        yield bench


MESSAGES: list[tuple[str, Message, list[Any], list[Any]]] = [
    ("user", GO, [{"role": "user", "content": "Go."}], [{"role": "user", "content": "Go."}]),
    (
        "text",
        assistant_message("Hi."),
        [{"role": "assistant", "content": "Hi."}],
        [{"role": "assistant", "content": "Hi."}],
    ),
    (
        "nothing",
        assistant_message(),
        [{"role": "assistant", "content": "(no text)"}],
        [{"role": "assistant", "content": "(no text)"}],
    ),
    (
        "calls",
        assistant_message("", tool_call("a"), tool_call("b")),
        [{"role": "assistant", "content": None, "tool_calls": [chat_call("a"), chat_call("b")]}],
        [function_call("a"), function_call("b")],
    ),
    (
        "text and call",
        assistant_message("Wait.", tool_call("a")),
        [{"role": "assistant", "content": "Wait.", "tool_calls": [chat_call("a")]}],
        [{"role": "assistant", "content": "Wait."}, function_call("a")],
    ),
    (
        "illegal call",
        assistant_message("", tool_call("a b", "se arch", "nope")),
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [chat_call(legal_id("a b"), "se_arch", "{}")],
            }
        ],
        [function_call(legal_id("a b"), "se_arch", "{}")],
    ),
    (
        "result",
        result("a b"),
        [{"role": "tool", "tool_call_id": legal_id("a b"), "content": "found"}],
        [{"type": "function_call_output", "call_id": legal_id("a b"), "output": "found"}],
    ),
    (
        "reasoning first",
        assistant_message("Hi.", tool_call("a"), data={"openai": [reasoning_item()]}),
        [{"role": "assistant", "content": "Hi.", "tool_calls": [chat_call("a")]}],
        [reasoning_item(), {"role": "assistant", "content": "Hi."}, function_call("a")],
    ),
    (
        "reasoning between",
        assistant_message(
            "Hi.",
            tool_call("a"),
            tool_call("b"),
            data={
                "openai": [
                    reasoning_item("rs_1"),
                    {"type": "function_call"},
                    reasoning_item("rs_2"),
                    reasoning_item("rs_3"),
                ]
            },
        ),
        [{"role": "assistant", "content": "Hi.", "tool_calls": [chat_call("a"), chat_call("b")]}],
        [
            reasoning_item("rs_1"),
            function_call("a"),
            reasoning_item("rs_2"),
            reasoning_item("rs_3"),
            {"role": "assistant", "content": "Hi."},
            function_call("b"),
        ],
    ),
    (
        "reasoning that led to nothing",
        assistant_message("Hi.", data={"openai": [{"type": "message"}, reasoning_item()]}),
        [{"role": "assistant", "content": "Hi."}],
        [{"role": "assistant", "content": "Hi."}],
    ),
    (
        "reasoning with output fields, and without its content",
        assistant_message(
            "Hi.",
            data={
                "openai": [
                    reasoning_item(status="completed", content=None),
                    reasoning_item("rs_2", encrypted_content=None),
                ]
            },
        ),
        [{"role": "assistant", "content": "Hi."}],
        [reasoning_item(), {"role": "assistant", "content": "Hi."}],
    ),
    (
        "phases",
        assistant_message(
            "One.\n\nTwo.",
            data={
                "openai": [
                    {"type": "message", "phase": "commentary", "text": "One."},
                    {"type": "message", "phase": "final_answer", "text": "Two."},
                ]
            },
        ),
        [{"role": "assistant", "content": "One.\n\nTwo."}],
        [
            {"role": "assistant", "content": "One.", "phase": "commentary"},
            {"role": "assistant", "content": "Two.", "phase": "final_answer"},
        ],
    ),
    (
        "somebody else's data",
        assistant_message("Hi.", data={"openai": "?", "openai-chat": ["?"], "other": 1}),
        [{"role": "assistant", "content": "Hi."}],
        [{"role": "assistant", "content": "Hi."}],
    ),
]


@pytest.mark.parametrize(
    ("message", "chat", "responses"), [row[1:] for row in MESSAGES], ids=[row[0] for row in MESSAGES]
)
async def test_each_message_is_encoded_for_both_apis(
    bench: Bench, message: Message, chat: list[Any], responses: list[Any]
) -> None:
    around: list[Message] = [GO]
    if isinstance(message, ToolMessage):
        around.append(assistant_message("", tool_call(message.call_id)))
    around.append(message)
    if isinstance(message, AssistantMessage):
        around += [result(call.id) for call in message.tool_calls]
    bench.server.script("m", lambda body, nth: Turn("ok"))
    for api, field, expected in (("openai-chat", "messages", chat), ("openai", "input", responses)):
        await bench.ask(api, around, instructions="")
        start = len(
            [item for before in around[: around.index(message)] for item in bench.providers[api].encode(before)]
        )
        assert bench.sent[field][start : start + len(expected)] == expected
        assert bench.providers[api].encode(message) == bench.providers[api].encode(message.model_copy(deep=True))
    assert bench.server.refusals == []


@pytest.mark.parametrize("api", APIS)
async def test_each_request_body_begins_with_the_bytes_of_the_one_before(bench: Bench, api: str) -> None:
    """Up to the end of its last message."""
    turns = [
        Turn("Let me see.", calls=[("search", "{'q': 1", None), ("no such", "[]", "a_b")], reasoning=[Reasoning()]),
        Turn(calls=[("search", '{"q": "é\\u00e9"}', None)], reasoning=[Reasoning(), Reasoning(content=["Hm."])]),
        Turn("Done."),
    ]
    bench.server.script("m", turns)
    messages: list[Message] = [GO]
    for _ in turns:
        reply = await bench.ask(api, messages, settings={"temperature": 0.5})
        calls = [call.model_copy(update={"id": legal_id(call.id)}) for call in reply.calls]
        messages += [
            assistant_message(reply.text, *calls, data=reply.provider_data),
            *(result(call.id) for call in calls),
        ]
    bodies = [request.body for request in bench.server.requests]
    assert len(bodies) == 3
    for before, after in itertools.pairwise(bodies):
        assert before.endswith(b"]}")
        assert after.startswith(before.removesuffix(b"]}") + b",")
    assert bench.server.refusals == []


@pytest.mark.parametrize("api", APIS)
async def test_instructions_and_tools_are_encoded_for_both_apis(bench: Bench, api: str) -> None:
    await bench.answer(api, Turn("ok"))
    tool = SEARCH.model_dump()
    if api == "openai":
        assert bench.sent == {
            "model": "m",
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "instructions": "Be kind.",
            "tools": [{"type": "function", **tool, "strict": False}],
            "input": [{"role": "user", "content": "Go."}],
        }
    else:
        assert bench.sent == {
            "model": "m",
            "tools": [{"type": "function", "function": tool}],
            "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Go."}],
        }
    assert bench.server.refusals == []


def test_the_known_providers_are_those_that_are_created() -> None:
    providers = AvailableProviders({})
    assert {spelling: providers.of(f"{spelling}:m").name for spelling in BUILT_IN} == {
        "openai": "openai",
        "openai-chat": "openai",
        "anthropic": "anthropic",
        "google": "gcp.gemini",
        "scripted": "scripted",
    }


def test_creating_providers_does_not_import_their_packages() -> None:
    """Neither does declaring an agent with their models."""
    program = (
        "import sys; from mulligan import Agent; from mulligan.activities.models.available_providers import *; "
        "from mulligan.provider_plugin import BUILT_IN; models = [f'{p}:m' for p in BUILT_IN if p != 'scripted']; "
        "[AvailableProviders({}).of(m) for m in models]; Agent(name='a', model=models); "
        "print(sorted({'openai', 'anthropic', 'google.genai'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


async def test_many_requests_share_one_client(bench: Bench) -> None:
    bench.server.script("m", lambda body, nth: Turn("ok"))
    replies = await asyncio.gather(*(bench.ask(api) for api in APIS * 5))
    assert [reply.text for reply in replies] == ["ok"] * 10
    assert len({request.headers["host"] for request in bench.server.requests}) == 1
