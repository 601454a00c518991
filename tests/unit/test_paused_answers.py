"""Anthropic's `pause_turn`: the answer continues within the step, at most ten times."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan.activities.models.anthropic.anthropic import MOST_PAUSES
from mulligan.activities.models.protocol import Written
from mulligan.values import HostedCall, Usage
from tests.support.openai_server import Failure, Turn
from tests.support.provider_fixtures import Bench

USE = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "otters"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srv_1",
    "content": [{"type": "web_search_result", "url": "https://a", "title": "Otters", "encrypted_content": "e"}],
}
CITED = {
    "type": "web_search_result_location",
    "url": "https://a",
    "title": "Otters",
    "cited_text": "Otters swim.",
    "encrypted_index": "i",
}


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Bench.open(monkeypatch) as bench:
        yield bench
        assert bench.server.refusals == []


def message(*blocks: Any, stop: str = "end_turn", tokens: int = 10, **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": tokens, "output_tokens": 1}
    return {"content": list(blocks), "stop_reason": stop, "usage": usage, "model": "m", **more}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def events(answer: dict[str, Any]) -> list[dict[str, Any] | str]:
    """The answer as its stream: each text in two pieces."""
    sent: list[dict[str, Any] | str] = [{"type": "message_start", "message": {**answer, "content": []}}]
    for index, block in enumerate(answer["content"]):
        start = {**block, "text": ""} if block["type"] == "text" else block
        sent.append({"type": "content_block_start", "index": index, "content_block": start})
        for piece in (block.get("text", "")[:3], block.get("text", "")[3:]):
            delta = {"type": "text_delta", "text": piece}
            sent.append({"type": "content_block_delta", "index": index, "delta": delta})
    end = {"stop_reason": answer["stop_reason"], "container": answer.get("container")}
    return [*sent, {"type": "message_delta", "delta": end, "usage": {}}, {"type": "message_stop"}]


ANSWERS = [
    message(text("I look."), USE, stop="pause_turn", container={"id": "box_1", "expires_at": "2999-01-01T00:00:00Z"}),
    message(FOUND, text("So: "), stop="pause_turn", tokens=20),
    message(text("Otters swim.", citations=[CITED]), text(" Well."), tokens=30),
]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_paused_answer_continues_in_its_step(bench: Bench, is_streamed: bool) -> None:
    asked: list[dict[str, Any]] = []

    def script(body: dict[str, Any], nth: int) -> Turn:
        answer = ANSWERS[len(asked)]
        asked.append(body)
        return Turn(events=events(answer)) if is_streamed else Turn(failure=Failure(status=200, body=answer))

    bench.server.script("m", script)
    pieces: list[str] = []
    written = Written()
    reply = await bench.ask("anthropic", on_text=pieces.append if is_streamed else None, written=written)
    assert [body["messages"][1:] for body in asked] == [
        [],
        [{"role": "assistant", "content": [text("I look."), USE]}],
        [{"role": "assistant", "content": [text("I look."), USE, FOUND, text("So: ")]}],
    ]
    assert [body.get("container") for body in asked] == [None, "box_1", "box_1"]
    assert reply.text == "I look.\n\nSo: Otters swim. Well."
    assert (reply.finish_reason, reply.usage) == ("stop", Usage(input_tokens=60, output_tokens=3))
    assert reply.last_usage == Usage(input_tokens=30, output_tokens=1)
    assert reply.hosted_calls == [
        HostedCall(id="srv_1", name="web_search", arguments='{"query": "otters"}', status="completed")
    ]
    [cited] = reply.citations
    assert (cited.url, cited.title, cited.text) == ("https://a", "Otters", "Otters swim.")
    assert reply.text[cited.start : cited.end] == "Otters swim."
    if is_streamed:
        assert "".join(pieces) == reply.text
        assert written.usage == reply.usage


async def test_an_answer_is_continued_ten_times_at_most(bench: Bench) -> None:
    paused = message({**USE, "id": "srv"}, FOUND, stop="pause_turn")
    count = 0

    def script(body: dict[str, Any], nth: int) -> Turn:
        nonlocal count
        count += 1
        return Turn(failure=Failure(status=200, body=paused))

    bench.server.script("m", script)
    reply = await bench.ask("anthropic")
    assert (count, reply.finish_reason) == (1 + MOST_PAUSES, "length")


async def test_a_paused_answer_with_a_call_waits_for_its_result(bench: Bench) -> None:
    call = {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": 1}}
    reply = await bench.body("anthropic", message(USE, call, stop="pause_turn"))
    assert (reply.finish_reason, reply.calls[0].arguments) == ("tool_calls", '{"q": 1}')


async def test_an_error_while_an_answer_continues_is_the_error_of_the_attempt(bench: Bench) -> None:
    turns = [Turn(failure=Failure(status=200, body=ANSWERS[0])), Turn(failure=Failure(status=400))]
    bench.server.script("m", lambda body, nth: turns.pop(0))
    with pytest.raises(Exception, match="scripted failure 400"):
        await bench.ask("anthropic")
