"""What a provider returns and Mulligan does not interpret goes back to it unchanged, in its place.

A test goes through all kinds of an API: its package, which has them, is imported where the test runs, not by each process.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import pytest

from mulligan.activities.answers.size_limits import PROVIDER_BYTES
from mulligan.activities.models.anthropic._anthropic_assembler import AnthropicAssembler
from mulligan.activities.models.fit_provider_data import fit_provider_data
from mulligan.activities.models.google._google_assembler import GoogleAssembler
from mulligan.activities.models.openai._chat_assembler import ChatAssembler
from mulligan.activities.models.openai._responses_assembler import ResponsesAssembler
from mulligan.activities.models.protocol import Reply
from mulligan.values import AssistantMessage
from mulligan.wire.shorten import json_size
from tests.support.content_files import png
from tests.support.google_api import signature_of
from tests.support.provider_fixtures import GO, Bench, completion, result
from tests.support.sdk_examples import example, members
from tests.support.zoo.openai_responses_rules import CLIENT_CALLS, link_of

DONE = "It is done."


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Bench.open(monkeypatch) as bench:
        yield bench
        assert bench.server.refusals == []


def message_of(reply: Reply, data: dict[str, Any] | None = None) -> AssistantMessage:
    return AssistantMessage(
        role="assistant",
        text=reply.text,
        tool_calls=list(reply.calls),
        provider_data=data or fit_provider_data(reply.provider_data, PROVIDER_BYTES),
        files=list(reply.files) or None,
    )


async def sent_after(bench: Bench, api: str, reply: Reply) -> dict[str, Any]:
    """The request after an answer, which the strict server has accepted. Its calls have results."""
    answer = message_of(reply)
    results = [result(call.id) for call in answer.tool_calls]
    await bench.ask_ok(api, [GO, answer, *results, GO])
    return bench.sent


# Responses API


@cache
def items_of_responses() -> dict[str, Any]:
    """By type, without reasoning, whose fields are chosen (test_provider_reasoning.py), and without what no answer has."""
    from openai.types.responses import ResponseOutputItem

    return {
        each.model_fields["type"].annotation.__args__[0]: each
        for each in members(ResponseOutputItem)
        if each.__name__ not in ("ResponseReasoningItem", "ResponseFunctionToolCallOutputItem")
    }


def response(*items: Any) -> dict[str, Any]:
    return {"id": "resp_1", "status": "completed", "output": list(items), "usage": {"input_tokens": 7}}


def text_item(text: str = DONE, **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part], **more}


def item_of(kind: str) -> dict[str, Any]:
    item: dict[str, Any] = example(items_of_responses()[kind])
    if kind == "message":
        item["id"] = "msg_2"
    if kind == "image_generation_call":
        item["result"] = base64.b64encode(png()).decode()
    return {**item, "name": "search", "arguments": "{}"} if kind == "function_call" else item


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_items_of_the_responses_api(bench: Bench, subtests: pytest.Subtests, is_streamed: bool) -> None:
    for kind in (*items_of_responses(), "future_call"):
        with subtests.test(kind):
            await check_item(bench, kind, is_streamed)


async def check_item(bench: Bench, kind: str, is_streamed: bool) -> None:
    future = {"type": kind, "id": "fu_1", "work": {"deep": [1]}, "status": "completed"}
    item = item_of(kind) if kind in items_of_responses() else future
    called = [call_of(item)] if kind in CLIENT_CALLS.values() else []
    answer = response(*called, item, text_item())
    if is_streamed:
        answer = streamed_response(answer)
    reply = await bench.body("openai", answer)
    assert reply.text.endswith(DONE)
    sent = (await sent_after(bench, "openai", reply))["input"]
    if kind == "function_call":
        call = {name: value for name, value in item.items() if name not in ("id", "status")}
        assert call in sent
        assert next(each for each in sent if each.get("type") == "function_call_output")["caller"] == item["caller"]
    elif kind == "computer_call":
        assert NO_SCREEN in sent[1]["content"]
    else:
        assert sent[1 : 2 + len(called)] == [*called, item]
        texts = [each for each in sent[2:] if each.get("role") == "assistant"]
        assert [each["content"] for each in texts] == [DONE]


def call_of(output: dict[str, Any]) -> dict[str, Any]:
    """The call that an output in an answer belongs to."""
    call = item_of(next(call for call, named in CLIENT_CALLS.items() if named == output["type"]))
    return {
        **call,
        "id": "c_1",
        "call_id": link_of(output),
        **({"id": link_of(output)} if "mcp" in call["type"] else {}),
    }


NO_SCREEN = "This call cannot be carried out here."


def streamed_response(answer: dict[str, Any]) -> dict[str, Any]:
    assembler = ResponsesAssembler(lambda text: None)
    for number, item in enumerate(answer["output"]):
        assembler.add({"type": "response.output_item.done", "output_index": number, "item": item})
    assembler.add({"type": "response.completed", "response": {**answer, "output": []}})
    return assembler.result()


# Anthropic


@cache
def blocks_of_anthropic() -> dict[str, Any]:
    from anthropic.types import ContentBlock
    from anthropic.types.beta import BetaContentBlock

    return {
        each.model_fields["type"].annotation.__args__[0]: each
        for each in (*members(BetaContentBlock), *members(ContentBlock))
        if each.model_fields["type"].annotation.__args__[0] not in ("thinking", "redacted_thinking")
    }


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_blocks_of_anthropic(bench: Bench, subtests: pytest.Subtests, is_streamed: bool) -> None:
    for kind in (*blocks_of_anthropic(), "future_use"):
        with subtests.test(kind):
            await check_block(bench, kind, is_streamed)


async def check_block(bench: Bench, kind: str, is_streamed: bool) -> None:
    known = blocks_of_anthropic().get(kind)
    block = example(known) if known else {"type": kind, "id": "fu_1", "work": {"deep": [1]}}
    if kind == "tool_use":
        block |= {"name": "search", "input": {}}
    answer = {"content": [block, {"type": "text", "text": DONE}], "stop_reason": "end_turn", "usage": {}}
    if is_streamed:
        answer = streamed_blocks(answer)
    reply = await bench.body("anthropic", answer)
    assert reply.text.endswith(DONE)
    sent = (await sent_after(bench, "anthropic", reply))["messages"][1]["content"]
    assert sent == [block, {"type": "text", "text": DONE}]


def streamed_blocks(answer: dict[str, Any]) -> dict[str, Any]:
    """The message as the events of its stream: texts and inputs come in pieces, all else with the start of its block."""
    assembler = AnthropicAssembler(lambda text: None)
    assembler.add({"type": "message_start", "message": {**answer, "content": []}})
    for index, block in enumerate(answer["content"]):
        start, deltas = dict(block), []
        if block["type"] == "text":
            start |= {"text": ""}
            deltas = [{"type": "text_delta", "text": each} for each in block["text"]]
            for cited in start.pop("citations", None) or []:
                deltas.append({"type": "citations_delta", "citation": cited})
        elif isinstance(block.get("input"), dict):
            start |= {"input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": each} for each in json.dumps(block["input"])]
        elif block["type"] == "compaction":
            content = start.pop("content")
            deltas = [{"type": "compaction_delta", "content": content}]
        assembler.add({"type": "content_block_start", "index": index, "content_block": start})
        for delta in deltas:
            assembler.add({"type": "content_block_delta", "index": index, "delta": delta})
    assembler.add({"type": "message_delta", "delta": {"stop_reason": answer["stop_reason"]}, "usage": {}})
    assembler.add({"type": "message_stop"})
    return assembler.result()


# Google


@cache
def parts_of_google() -> dict[str, Any]:
    from google.genai.types import Part

    return {
        str(field.alias): field.annotation
        for field in Part.model_fields.values()
        if field.alias not in ("functionCall", "functionResponse", "text", "thought", "thoughtSignature")
    }


DATA_NAMES = (
    "fileData", "inlineData", "executableCode", "codeExecutionResult", "toolCall", "toolResponse", "futureWork"
)  # fmt: skip
"""A part has one of these, a text or a call; the other fields stand beside them."""


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_parts_of_google(bench: Bench, subtests: pytest.Subtests, is_streamed: bool) -> None:
    others = [name for name in parts_of_google() if name not in DATA_NAMES]
    assert others
    for name, beside in (
        *((name, "nothing") for name in DATA_NAMES),
        *itertools.product(others, ["text", "functionCall"]),
    ):
        with subtests.test(name, beside=beside):
            await check_part(bench, name, beside, is_streamed)


async def check_part(bench: Bench, name: str, beside: str, is_streamed: bool) -> None:
    part: dict[str, Any] = {name: example(parts_of_google().get(name), name)}
    if beside == "text":
        part["text"] = "See this."
    elif beside == "functionCall":
        part["functionCall"] = {"name": "search", "args": {}, "id": "c1"}
    part["thoughtSignature"] = signature_of(part)
    answer = {"candidates": [{"content": {"parts": [part, {"text": DONE}]}, "finishReason": "STOP"}]}
    if is_streamed:
        answer = streamed_parts(answer)
    reply = await bench.body("google", answer)
    assert reply.text.endswith(DONE)
    contents = (await sent_after(bench, "google", reply))["contents"]
    assert contents[1]["parts"] == [part, {"text": DONE}]


def streamed_parts(answer: dict[str, Any]) -> dict[str, Any]:
    assembler = GoogleAssembler(lambda text: None)
    candidate = answer["candidates"][0]
    for part in candidate["content"]["parts"]:
        assembler.add({"candidates": [{"content": {"parts": [part]}}]})
    assembler.add({"candidates": [{**candidate, "content": {}}], "usageMetadata": {}})
    return assembler.result()


# Chat Completions


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_fields_of_chat_completions(bench: Bench, subtests: pytest.Subtests, is_streamed: bool) -> None:
    from openai.types.chat import ChatCompletionMessage

    fields = [
        name for name in ChatCompletionMessage.model_fields if name not in ("role", "function_call", "tool_calls")
    ]
    for name in (*fields, "custom call", "reasoning_details", "extra_content of a call"):
        with subtests.test(name):
            await check_field(bench, name, is_streamed)


async def check_field(bench: Bench, name: str, is_streamed: bool) -> None:
    from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageCustomToolCall

    message: dict[str, Any] = {"role": "assistant", "content": DONE}
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    if name == "custom call":
        message["tool_calls"] = [{**example(ChatCompletionMessageCustomToolCall), "id": "c1"}]
    elif name == "extra_content of a call":
        message["tool_calls"] = [{**call, "extra_content": {"google": {"thought_signature": "abc"}}}]
    elif name == "reasoning_details":
        message[name] = [{"type": "reasoning.text", "text": "Hm.", "index": 0, "signature": "s"}]
    elif name not in ("content", "refusal"):
        message[name] = example(ChatCompletionMessage.model_fields[name].annotation, name)
    answer = completion(message, finish_reason="stop")
    if is_streamed:
        answer = streamed_message(message)
    reply = await bench.body("openai-chat", answer)
    assert DONE in reply.text
    sent = await encoded(bench, reply)
    if name == "audio":
        assert sent[1]["audio"] == {"id": message["audio"]["id"]}  # the API takes no more of it
        assert sent[1]["content"] is None
    else:
        assert sent[1] == message
    if name == "custom call":
        assert sent[2]["tool_call_id"] == "c1"


async def encoded(bench: Bench, reply: Reply) -> list[dict[str, Any]]:
    """The messages of the next request: OpenAI itself would refuse the fields of other servers."""
    provider = bench.providers["openai-chat"]
    return [json.loads(item) for message in (GO, message_of(reply)) for item in provider.encode(message)]


def streamed_message(message: dict[str, Any]) -> dict[str, Any]:
    """The message as its deltas: the text in two pieces, a field in each, the calls by their indexes."""
    assembler = ChatAssembler(lambda text: None)
    text = message["content"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": text[:4]}, {"content": text[4:]}]
    deltas += [{name: value} for name, value in message.items() if name not in ("role", "content", "tool_calls")]
    deltas += [{"tool_calls": [{**call, "index": n}]} for n, call in enumerate(message.get("tool_calls", []))]
    for delta in deltas:
        assembler.add({"choices": [{"index": 0, "delta": delta}]})
    assembler.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return assembler.result()


# Bounds


@pytest.mark.parametrize("kind", ["future_call", "web_search_call", "message", "deep"])
async def test_an_item_that_is_too_large_is_described_in_its_place(bench: Bench, kind: str) -> None:
    huge: dict[str, Any] = {"type": kind, "id": "ws_1", "results": [{"text": "found it " + "x" * 5_000_000}]}
    if kind == "message":
        huge = text_item("Cited.", id="msg_2")
        huge["content"][0]["annotations"] = [{"type": "url_citation", "url": "u" * 5_000_000, "title": "t"}]
    elif kind == "deep":
        huge = {"type": "future_call", "id": "fu_1", "found": json.loads("[" * 300 + "]" * 300)}
    small = {"type": "web_search_call", "id": "ws_2", "status": "completed", "action": {"type": "search", "query": "q"}}
    reply = await bench.body("openai", response(small, huge, text_item()))
    answer = message_of(reply)
    assert json_size(answer.provider_data) <= PROVIDER_BYTES
    sent = (await sent_after(bench, "openai", reply))["input"]
    assert sent[1] == small
    assert sent[3]["content"] == DONE
    expected = "Cited." if kind == "message" else "was too large to be kept"
    assert expected in sent[2]["content"]
    if kind in ("future_call", "web_search_call"):
        assert "found it" in sent[2]["content"]


async def test_a_result_that_is_too_large_leaves_no_call_without_a_result(bench: Bench) -> None:
    use = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "q"}}
    hit = {"type": "web_search_result", "url": "https://a", "title": "A", "encrypted_content": "e" * 5_000_000}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [hit]}
    content = [use, found, {"type": "text", "text": DONE}]
    reply = await bench.body("anthropic", {"content": content, "stop_reason": "end_turn"})
    sent = (await sent_after(bench, "anthropic", reply))["messages"][1]["content"]
    assert [block["type"] for block in sent] == ["text", "text"]
    assert 'web_search({"query": "q"})' in sent[0]["text"]
    assert "https://a" in sent[0]["text"]


def test_a_million_fields_that_are_too_large_are_left_out_quickly() -> None:
    fields: dict[str, Any] = {f"field{n}": "x" * 100 for n in range(20_000)}
    fitting = fit_provider_data({"openai-chat": fields}, PROVIDER_BYTES)
    assert fitting is not None
    assert json_size(fitting) <= PROVIDER_BYTES
