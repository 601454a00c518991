"""The OpenAI providers read answers, including incomplete and invalid ones."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan.activities.models._read_response import wrong_types_are_unavailable
from mulligan.activities.models.checked_reply import MOST_ID_CHARS, checked_id
from mulligan.activities.models.protocol import Unavailable
from mulligan.errors import ModelRequestError
from mulligan.values import Usage
from tests.fuzz.provider_streams import APIS as PROVIDER_STREAMS
from tests.fuzz.provider_streams import CALL, TEXT, changed, places, read_changed_stream, read_events
from tests.support.openai_server import Failure, Reasoning, Turn
from tests.support.openai_turn import Usage as ServedUsage
from tests.support.provider_fixtures import APIS, Bench, chat_call, completion, tool_call


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Bench.open(monkeypatch) as bench:
        yield bench


@pytest.mark.parametrize("api", APIS)
async def test_text_calls_usage_and_model_of_an_answer_are_read(bench: Bench, api: str) -> None:
    used = ServedUsage(input_tokens=100, output_tokens=50, cached_input_tokens=80, reasoning_tokens=30)
    turn = Turn("Hi.", calls=[("search", "{'q'", "id!"), ("", "", "")], usage=used, model="m-2026")
    reply = await bench.answer(api, turn)
    assert reply.text == "Hi."
    assert reply.calls == [tool_call("id!", arguments="{'q'"), tool_call("", "", "")]
    assert reply.finish_reason == "tool_calls"
    assert reply.usage == Usage(input_tokens=100, output_tokens=50, cached_input_tokens=80, reasoning_tokens=30)
    assert reply.response_id.startswith(("resp_", "chatcmpl-"))
    assert reply.model == "m-2026"
    assert reply.provider_data is None


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("turn", "reason", "text"),
    [
        (Turn("x"), "stop", "x"),
        (Turn(calls=[("search", "{}")]), "tool_calls", ""),
        (Turn("x", calls=[("search", '{"q')], finish_reason="length"), "length", "x"),
        (Turn("x", finish_reason="length"), "length", "x"),
        (Turn("x", finish_reason="content_filter"), "content_filter", "x"),
        (Turn(refusal="I won't."), "refusal", "I won't."),
        (Turn(""), "stop", ""),
    ],
)
async def test_each_finish_reason_is_read_by_its_common_name(
    bench: Bench, api: str, turn: Turn, reason: str, text: str
) -> None:
    reply = await bench.answer(api, turn)
    assert (reply.finish_reason, reply.text) == (reason, text)


@pytest.mark.parametrize("api", APIS)
async def test_usage_may_be_missing(bench: Bench, api: str) -> None:
    assert (await bench.answer(api, Turn("x", usage=None))).usage == Usage()


ODD_CHAT: list[tuple[str, dict[str, Any], Any]] = [
    (
        "stop with calls",
        completion({"tool_calls": [chat_call()]}, finish_reason="stop"),
        ("", [tool_call("c")], "tool_calls"),
    ),
    ("tool_calls without", completion({"content": "x"}, finish_reason="tool_calls"), ("x", [], "stop")),
    ("empty calls", completion({"content": "x", "tool_calls": []}), ("x", [], "stop")),
    (
        "legacy function",
        completion({"function_call": {"name": "search", "arguments": "{}"}}, finish_reason="function_call"),
        ("", [tool_call("")], "tool_calls"),
    ),
    ("parts", completion({"content": [{"type": "text", "text": "a"}, "b", {"type": "image"}]}), ("ab", [], "stop")),
    (
        "arguments as an object, id missing",
        completion({"tool_calls": [{"function": {"name": "search", "arguments": {"q": "é"}}}]}),
        ("", [tool_call("", arguments='{"q": "é"}')], "tool_calls"),
    ),
    (
        "null arguments, a number for an id",
        completion({"tool_calls": [{"id": 7, "function": {"name": "search", "arguments": None}}]}),
        ("", [tool_call("7", arguments="")], "tool_calls"),
    ),
    ("a call that is none", completion({"tool_calls": ["?"]}), ("", [tool_call("", "", "")], "tool_calls")),
    ("another server's word", completion({"content": "x"}, finish_reason="max_tokens"), ("x", [], "length")),
    ("usage of nonsense", {**completion({"content": "x"}), "usage": {"prompt_tokens": "7"}}, ("x", [], "stop")),
]


@pytest.mark.parametrize(("body", "expected"), [row[1:] for row in ODD_CHAT], ids=[row[0] for row in ODD_CHAT])
async def test_incomplete_answers_of_compatible_servers_are_read(
    bench: Bench, body: dict[str, Any], expected: Any
) -> None:
    reply = await bench.body("openai-chat", body)
    assert (reply.text, reply.calls, reply.finish_reason) == expected
    assert reply.usage == Usage()


NONSENSE: list[tuple[str, Failure]] = [
    ("openai-chat", Failure(status=200, body={"choices": []})),
    ("openai-chat", Failure(status=200, body={"choices": None})),
    ("openai-chat", Failure(status=200, body={"choices": [None]})),
    ("openai-chat", Failure(status=200, body=completion(None))),
    ("openai-chat", Failure(status=200, body={"error": {"message": "overloaded", "code": 502}})),
    ("openai-chat", Failure(status=200, body={"error": {"message": "busy"}})),
    ("openai-chat", Failure(status=200, body="<html>busy</html>")),
    ("openai-chat", Failure(status=200, body="[]")),
    ("openai-chat", Failure(status=200, body="[" * 100_000)),
    ("openai", Failure(status=200, body={"status": "completed"})),
    ("openai", Failure(status=200, body={"status": "in_progress", "output": []})),
    ("openai", Failure(status=200, body={"status": "failed", "error": None})),
    ("openai", Failure(status=200, body={"status": "failed", "error": {"code": "server_error", "message": "oops"}})),
    ("openai", Failure(status=200, body={"status": "failed", "error": {"code": "rate_limit_exceeded"}})),
    ("openai", Failure(status=200, body="<html>busy</html>")),
]


@pytest.mark.parametrize(("api", "nonsense"), NONSENSE, ids=lambda value: str(getattr(value, "body", value))[:60])
async def test_an_answer_that_cannot_be_parsed_raises_unavailable(bench: Bench, api: str, nonsense: Failure) -> None:
    with pytest.raises(Unavailable):
        await bench.answer(api, Turn(failure=nonsense))


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("openai", {"status": "failed", "output": [], "error": {"code": "invalid_prompt", "message": "No."}}),
        ("openai-chat", {"error": {"code": 402, "message": "No."}}),
    ],
)
async def test_an_error_body_with_status_200_raises_model_request_error(
    bench: Bench, api: str, body: dict[str, Any]
) -> None:
    with pytest.raises(ModelRequestError, match=r"No\."):
        await bench.body(api, body)


@pytest.mark.parametrize("api", APIS)
async def test_lone_surrogates_and_nul_in_an_answer_are_replaced(bench: Bench, api: str) -> None:
    """JSON can escape them; a pair of surrogates is one character."""
    spoilt, whole = "a\ud800b\0\U0001f600", "a\ufffdb\ufffd\U0001f600"
    turn = Turn(spoilt, calls=[("search", f'{{"q": "{spoilt}"}}', None)], reasoning=[Reasoning(summary=[spoilt])])
    bench.server.script("m", [turn])
    reply = await bench.ask(api)
    assert reply.text == whole
    assert reply.calls[0].arguments == f'{{"q": "{whole}"}}'
    if api == "openai":
        assert reply.provider_data is not None
        json.dumps(reply.provider_data, ensure_ascii=False).encode()


@pytest.mark.parametrize("name", PROVIDER_STREAMS)
async def test_the_stream_that_is_changed_by_fuzzing_is_read_whole(name: str) -> None:
    for is_whole in (False, True):
        reply = await read_events(PROVIDER_STREAMS[name], PROVIDER_STREAMS[name].events, is_whole=is_whole)
        assert (reply.text, reply.finish_reason) == (TEXT, "tool_calls")
        [call] = reply.calls
        assert (call.id, call.name, json.loads(call.arguments)) == ("c1", "weather", json.loads(CALL))
        assert reply.usage == Usage(input_tokens=12 if name == "anthropic" else 9, output_tokens=7, cached_input_tokens=3, reasoning_tokens=0 if name == "anthropic" else 2)  # fmt: skip


@pytest.mark.parametrize("name", PROVIDER_STREAMS)
@pytest.mark.parametrize("value", [{}, [], {"a": []}, True, 7, -1.5, None, "x" * 5_000], ids=str)
def test_another_json_type_in_any_field_is_a_valid_answer_or_a_typed_error(name: str, value: Any) -> None:
    """Fuzzing changes several at a time."""
    api = PROVIDER_STREAMS[name]
    for place in places(api.events):
        for is_whole in (False, True):
            read_changed_stream((name, changed(api.events, [(place, value)]), is_whole))


def test_a_number_that_is_too_large_for_python_is_unavailable() -> None:
    """JSON has no limit: `1e999` is infinite."""
    with pytest.raises(Unavailable, match="OverflowError"), wrong_types_are_unavailable():
        int(json.loads("1e999"))


@pytest.mark.parametrize("value", ["file-1", 7, 0, "a\u00a0b", "a b", "datei-\u00e9", "x" * MOST_ID_CHARS])
def test_an_id_may_be_an_integer_and_have_any_characters_that_can_be_sent(value: Any) -> None:
    assert checked_id(value, "a file") == str(value)


@pytest.mark.parametrize(
    "value", ["", None, True, 1.5, {}, ["a"], "a\nb", "a\0", "\x7f", "a\x85", "\ud800", "x" * 1_001]
)
def test_what_cannot_be_sent_is_no_id(value: Any) -> None:
    with pytest.raises(Unavailable, match="id of a file"):
        checked_id(value, "a file")


async def test_a_response_with_all_the_tokens_that_it_was_allowed_is_cut_off(bench: Bench) -> None:
    """Some servers call it `completed`."""
    used = ServedUsage(input_tokens=10, output_tokens=64)
    reply = await bench.answer("openai", Turn("Half of", usage=used), settings={"max_output_tokens": 64})
    assert (reply.text, reply.finish_reason) == ("Half of", "length")
    reply = await bench.answer("openai", Turn("Whole.", usage=used), settings={"max_output_tokens": 65})
    assert reply.finish_reason == "stop"
