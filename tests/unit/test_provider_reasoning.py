"""Reasoning is sent back to its own provider only, in its place."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from mulligan.errors import ModelRequestError
from mulligan.values import AssistantMessage
from tests.support.openai_server import Failure, Turn
from tests.support.provider_fixtures import (
    GO,
    Bench,
    assistant_message,
    chat_call,
    completion,
    function_call,
    reasoning_item,
    result,
)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Bench.open(monkeypatch) as bench:
        yield bench


def read(items: Sequence[str]) -> list[Any]:
    return [json.loads(item) for item in items]


def output(*items: dict[str, Any]) -> dict[str, Any]:
    return {"status": "completed", "output": list(items)}


def spoken(text: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": parts, **more}


R1, R2 = reasoning_item("rs_1"), reasoning_item("rs_2")
C1, C2 = function_call("c1"), function_call("c2")
A = {"role": "assistant", "content": "A"}
B = {"role": "assistant", "content": "B"}

SEARCHED = {"type": "web_search_call", "id": "ws_1"}
LAYOUTS: list[tuple[str, list[Any], Any, list[Any]]] = [
    ("plain", [spoken("A"), C1], None, [A, C1]),
    ("reasoning first", [R1, R2, spoken("A"), C1, C2], [R1, R2], [R1, R2, A, C1, C2]),
    ("no text", [R1, C1, R2, C2], [R1, {"type": "function_call"}, R2], [R1, C1, R2, C2]),
    ("text last", [R1, C1, R2, spoken("A")], [R1, {"type": "function_call"}, R2], [R1, C1, R2, A]),
    ("text between", [C1, spoken("A"), C2], [{"type": "function_call"}], [C1, A, C2]),
    (
        "two texts",
        [R1, spoken("A"), R2, spoken("B"), C1],
        [R1, {"type": "message", "text": "A"}, R2, {"type": "message", "text": "B"}],
        [R1, A, R2, B, C1],
    ),
    (
        "phase",
        [spoken("A", phase="commentary"), C1],
        [{"type": "message", "phase": "commentary"}],
        [{**A, "phase": "commentary"}, C1],
    ),
    ("status", [reasoning_item(status="completed", content=None), C1], [reasoning_item()], [reasoning_item(), C1]),
    ("nothing encrypted", [reasoning_item(encrypted_content=None), C1], None, [C1]),
    ("nothing after it", [R1], [R1], [{"role": "assistant", "content": "(no text)"}]),
    ("hosted items", [R1, SEARCHED, spoken("A")], [R1, SEARCHED], [R1, SEARCHED, A]),
]


@pytest.mark.parametrize(("items", "kept", "echoed"), [row[1:] for row in LAYOUTS], ids=[row[0] for row in LAYOUTS])
async def test_reasoning_items_are_sent_back_in_their_order(
    bench: Bench, items: list[Any], kept: Any, echoed: list[Any]
) -> None:
    reply = await bench.body("openai", output(*items))
    assert reply.provider_data == (None if kept is None else {"openai": kept})
    message = AssistantMessage(
        role="assistant", text=reply.text, tool_calls=list(reply.calls), provider_data=reply.provider_data
    )
    from_history = AssistantMessage.model_validate_json(message.model_dump_json())
    assert read(bench.providers["openai"].encode(from_history)) == echoed
    bench.server.script("m", lambda body, nth: Turn("ok"))
    await bench.ask("openai", [GO, from_history, *(result(call.id) for call in reply.calls)])
    assert bench.server.refusals == []


@pytest.mark.parametrize(
    "told", ["Encrypted content is not supported with this model.", "Unrecognized request argument supplied: include"]
)
async def test_a_model_that_refuses_reasoning_is_asked_without_it_from_then_on(bench: Bench, told: str) -> None:
    """The refused request is repeated at once."""
    refusal = Turn(failure=Failure(status=400, body={"error": {"message": told, "param": "include", "code": None}}))
    bench.server.script("m", lambda body, nth: refusal if "include" in body else Turn("ok"))
    for _ in range(2):
        assert (await bench.ask("openai")).text == "ok"
    asked = ["reasoning.encrypted_content"]
    assert [request.json.get("include") for request in bench.server.requests] == [asked, None, None]


async def test_a_refusal_for_another_reason_does_not_switch_reasoning_off(bench: Bench) -> None:
    """The error is raised."""
    body = {"error": {"message": "The request must include politeness."}}
    bench.server.script("m", [Turn(failure=Failure(status=400, body=body))])
    with pytest.raises(ModelRequestError, match="politeness"):
        await bench.ask("openai")
    bench.server.script("m", [Turn("ok")])
    await bench.ask("openai")
    assert bench.sent["include"] == ["reasoning.encrypted_content"]


async def test_reasoning_that_the_model_cannot_decrypt_is_left_out(bench: Bench) -> None:
    """The model's own reasoning is still requested."""
    told = {
        "message": "The encrypted content for item rs_1 could not be verified.",
        "code": "invalid_encrypted_content",
    }

    def script(body: dict[str, Any], nth: int) -> Turn:
        foreign = any(item.get("type") == "reasoning" for item in body["input"])
        return Turn(failure=Failure(status=400, body={"error": told})) if foreign else Turn("ok")

    bench.server.script("m", script)
    reply = await bench.ask("openai", [GO, assistant_message("Hi.", data={"openai": [reasoning_item()]}), GO])
    assert reply.text == "ok"
    await bench.ask("openai")
    assert bench.sent["include"] == ["reasoning.encrypted_content"]


async def test_reasoning_content_is_sent_back_to_chat_completions_only(bench: Bench) -> None:
    """DeepSeek's field."""
    reply = await bench.body("openai-chat", completion({"reasoning_content": "Hm.", "tool_calls": [chat_call()]}))
    message = assistant_message("", *reply.calls, data=reply.provider_data)
    assert read(bench.providers["openai-chat"].encode(message)) == [
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [chat_call()]}
    ]
    assert read(bench.providers["openai"].encode(message)) == [function_call()]
