"""Streamed answers equal whole ones, and errors in a stream are recognised."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from mulligan.activities.models import _sdk_client
from mulligan.activities.models.protocol import Reply, Unavailable
from mulligan.errors import ModelRequestError
from tests.support.openai_server import Failure, Reasoning, Turn
from tests.support.openai_stream import Break
from tests.support.openai_turn import Usage
from tests.support.provider_fixtures import APIS, Bench, tool_call

USED = Usage(input_tokens=100, output_tokens=50, cached_input_tokens=80, reasoning_tokens=30)
LONG = "It was a dark and stormy night; the rain fell in torrents. " * 20
TURNS: dict[str, Turn] = {
    "a text": Turn(LONG, usage=USED),
    "nothing": Turn(""),
    "no usage": Turn("x", usage=None),
    "calls": Turn(calls=[("search", '{"query": "a long one", "limit": 10}', "a"), ("search", "{}", "b")], usage=USED),
    "text and calls": Turn("Let me look.", calls=[("search", '{"q": "x"}'), ("", "", "")]),
    "calls that are no JSON": Turn(calls=[("search", "{'q': tru", "id!"), ("a b", "", "")]),
    "a refusal": Turn(refusal="I will not do that."),
    "a text and a refusal": Turn("I would, but", refusal="I will not."),
    "cut off": Turn(LONG, finish_reason="length"),
    "cut off in a call": Turn(calls=[("search", '{"q')], finish_reason="length"),
    "filtered": Turn("Once upon", finish_reason="content_filter"),
    "letters of all kinds": Turn("naïve 日本語 🙈\u2028 \x85 end \ud83d half \x00 zero"),
    "another model": Turn("x", model="m-2026-01-01"),
}
REASONED = Turn("So.", calls=[("search", "{}", "a")], reasoning=[Reasoning(), Reasoning(("x", "y"), content=("z",))])


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Bench.open(monkeypatch) as bench:
        yield bench


async def in_pieces(bench: Bench, api: str, turn: Turn) -> tuple[Reply, list[str]]:
    pieces: list[str] = []
    return await bench.answer(api, turn, on_text=pieces.append), pieces


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("case", [*TURNS, "reasoning"])
async def test_a_streamed_answer_equals_the_whole_one(bench: Bench, api: str, case: str) -> None:
    """In calls, ids, reasoning, refusals, usage and finish reason; the pieces of the text make up the text."""
    turn = TURNS.get(case, REASONED)
    whole = await bench.answer(api, turn)
    assert "stream" not in bench.sent
    reply, pieces = await in_pieces(bench, api, turn)
    assert bench.sent["stream"] is True
    assert reply == whole
    told = "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")
    if case == "a text and a refusal" and api == "openai-chat":
        assert told == "I would, but"
    else:
        assert told == reply.text
    assert len(pieces) > 100 if turn.text == LONG else True
    assert bench.server.refusals == []


@pytest.mark.parametrize("api", APIS)
async def test_a_server_that_refuses_streaming_is_asked_without_it_from_then_on(bench: Bench, api: str) -> None:
    """The refused request is repeated once."""
    turn = Turn("Hi.", whole_only=True)
    for requests in (2, 3):
        reply, pieces = await in_pieces(bench, api, turn)
        assert (reply.text, pieces, len(bench.server.requests)) == ("Hi.", [], requests)
    assert [bool(request.json.get("stream")) for request in bench.server.requests] == [True, False, False]


@pytest.mark.parametrize("api", APIS)
async def test_a_whole_answer_to_a_streaming_request_is_read(bench: Bench, api: str) -> None:
    """There are no pieces then."""
    body = {"choices": [{"message": {"content": "Hm."}}]} if api == "openai-chat" else {"output": []}
    reply, pieces = await in_pieces(bench, api, Turn(failure=Failure(status=200, body=body)))
    assert (reply.text, pieces) == ("Hm." if api == "openai-chat" else "", [])
    assert bench.sent["stream"] is True


async def test_a_server_that_counts_only_whole_answers_is_not_streamed_from_any_more(bench: Bench) -> None:
    """Limits need the counts. A server that never counts is still streamed from."""
    uncounted: list[dict[str, Any] | str] = [chunk({"content": "a"}, "stop"), "[DONE]"]
    for turn, asked in (
        (Turn("a", events=uncounted), [True, False, False]),
        (Turn("a", usage=None), [True, False, True]),
    ):
        bench.server.requests.clear()
        bench.client._asked_for_usage.clear()
        for _ in range(3):
            await in_pieces(bench, "openai-chat", turn)
        assert [bool(request.json.get("stream")) for request in bench.server.requests] == asked


@pytest.mark.parametrize("api", APIS)
async def test_other_refusals_of_a_streaming_request_are_not_retried(bench: Bench, api: str) -> None:
    """Only a refusal that names streaming is repeated without it."""
    for status, message in ((400, "Unknown parameter: 'x'"), (404, "no stream here")):
        before = len(bench.server.requests)
        with pytest.raises(ModelRequestError, match=message):
            await in_pieces(bench, api, Turn(failure=Failure(status=status, body={"error": {"message": message}})))
        assert len(bench.server.requests) == before + 1


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("after", [0, 1, 5])
async def test_a_stream_that_breaks_off_raises_unavailable(bench: Bench, api: str, after: int) -> None:
    """A retryable error."""
    with pytest.raises(Unavailable):
        await in_pieces(bench, api, Turn(LONG, break_first=[Break(after, drop=True)]))


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def piece(index: int | None, call_id: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return chunk({"tool_calls": [{"id": call_id, "function": function} | ({} if index is None else {"index": index})]})


END = chunk({}, "stop")
ODD: dict[str, tuple[list[dict[str, Any] | str], tuple[str, list[Any], str]]] = {
    "calls side by side": (
        [piece(0, "a", "search", '{"q"'), piece(1, "b", "search", "{"), piece(0, None, None, ":1}"), piece(1, None, None, "}")],
        ("", [tool_call("a", arguments='{"q":1}'), tool_call("b", arguments="{}")], "tool_calls"),
    ),
    "one index for all": (
        [piece(0, "a", "search", "{}"), piece(0, "b", "search", '{"q"'), piece(0, None, None, ":1}")],
        ("", [tool_call("a"), tool_call("b", arguments='{"q":1}')], "tool_calls"),
    ),
    "no index": (
        [piece(None, "a", "search", "{"), piece(None, None, None, "}"), piece(None, "b", "search", "{}")],
        ("", [tool_call("a"), tool_call("b")], "tool_calls"),
    ),
    "the name each time": (
        [piece(0, "a", "search", "{"), piece(0, "a", "search", "}")],
        ("", [tool_call("a")], "tool_calls"),
    ),
    "arguments as an object": ([piece(0, "a", "search", {"q": 1})], ("", [tool_call("a", arguments='{"q": 1}')], "tool_calls")),
    "the old spelling": (
        [chunk({"function_call": {"name": "search", "arguments": "{"}}), chunk({"function_call": {"arguments": "}"}})],
        ("", [tool_call("")], "tool_calls"),
    ),
    "parts": ([chunk({"content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]})], ("Hi", [], "stop")),
    "half letters": ([chunk({"content": "\ud83d"}), chunk({"content": "\ude48"})], ("🙈", [], "stop")),
    "a message in place of a delta": ([{"choices": [{"message": {"content": "Hi"}}]}], ("Hi", [], "stop")),
    "other choices": ([chunk({"content": "a"}), {"choices": [{"index": 1, "delta": {"content": "b"}}]}], ("a", [], "stop")),
    "nothing that is known": ([{"x": 1}, chunk({"content": "a"}), {"choices": None}, {"choices": [None]}], ("a", [], "stop")),
    "ids that change": (
        [piece(0, "a", "search", "{"), piece(0, "b", None, '"q":'), piece(0, "c", None, "1}")],
        ("", [tool_call("a", arguments='{"q":1}')], "tool_calls"),
    ),
    "neither ids nor indexes": (
        [chunk({"tool_calls": [{"function": {"name": name, "arguments": '{"q":1}'}} for name in ("search", "find")]})],
        ("", [tool_call("", arguments='{"q":1}'), tool_call("", "find", '{"q":1}')], "tool_calls"),
    ),
    "two objects for one call": (
        [piece(0, "a", "search", '{"q":1}'), piece(0, "a", None, '{"q":2}')],
        ("", [tool_call("a", arguments='{"q":1}{"q":2}')], "tool_calls"),
    ),
    "two equal calls": (
        [piece(0, "a", "search", '{"q":1}'), piece(1, "b", "search", '{"q":1}')],
        ("", [tool_call("a", arguments='{"q":1}'), tool_call("b", arguments='{"q":1}')], "tool_calls"),
    ),
    "two equal calls without indexes": (
        [piece(None, "a", "search", '{"q":1}'), piece(None, "b", "search", '{"q":1}')],
        ("", [tool_call("a", arguments='{"q":1}'), tool_call("b", arguments='{"q":1}')], "tool_calls"),
    ),
    "indexes that count the chunks": (
        [
            *({"choices": [{"index": n, "delta": {"content": text}}]} for n, text in enumerate("abc")),
            {"choices": [{"index": 3, "delta": {}, "finish_reason": "stop"}]},
        ],
        ("abc", [], "stop"),
    ),
    "a text of repetitions": ([chunk({"content": "ha"}), chunk({"content": "ha"})], ("haha", [], "stop")),
    "usage in a choice, empty frames": (["", chunk({"content": "a"}), "null", ""], ("a", [], "stop")),
    "no finish reason": ([chunk({"content": "a"}), "[DONE]"], ("a", [], "stop")),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
async def test_odd_chunks_of_compatible_servers_are_read(bench: Bench, case: str) -> None:
    """Such as missing fields."""
    events, (text, calls, reason) = ODD[case]
    ends = [] if case in ("no finish reason", "indexes that count the chunks") else [END]
    reply, _ = await in_pieces(bench, "openai-chat", Turn(events=[*events, *ends]))
    assert (reply.text, reply.calls, reply.finish_reason) == (text, calls, reason)


BROKEN: dict[str, tuple[str, list[dict[str, Any] | str], type[Exception], str]] = {
    "an end without a reason": ("openai-chat", [chunk({"content": "Once"})], Unavailable, "broke off"),
    "no end": ("openai", [{"type": "response.output_text.delta", "delta": "Once"}], Unavailable, "broke off"),
    "no JSON": ("openai-chat", [chunk({"content": "a"}), "<html>"], Unavailable, "not a JSON object"),
    "an error": (
        "openai-chat",
        [chunk({"content": "a"}), chunk({}, "error", error={"code": 502, "message": "gone"})],
        Unavailable,
        "502: gone",
    ),
    "an error that refuses": ("openai-chat", [{"error": {"code": 403, "message": "no"}}], ModelRequestError, "no"),
    "an error event": ("openai", [{"type": "error", "code": "server_error", "message": "gone"}], Unavailable, "gone"),
    "an error event that refuses": (
        "openai",
        [{"type": "error", "code": "invalid_prompt", "message": "no"}],
        ModelRequestError,
        "no",
    ),
    "a failed response": (
        "openai",
        [{"type": "response.failed", "response": {"status": "failed", "error": {"code": "x", "message": "gone"}}}],
        Unavailable,
        "gone",
    ),
    "nothing": ("openai-chat", ["[DONE]"], Unavailable, "no choices"),
    "an item with an error": (
        "openai",
        [{"type": "response.completed", "response": {"status": "completed", "output": [{"type": "message", "content": [], "error": {"code": 502, "message": "gone"}}]}}],
        Unavailable,
        "502: gone",
    ),
    "an anthropic stop reason": (
        "anthropic",
        [
            {"type": "message_start", "message": {"id": "m"}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Once"}},
            {"type": "message_delta", "delta": {"stop_reason": "error"}},
            {"type": "message_stop"},
        ],
        Unavailable,
        "'error'",
    ),
    "anthropic, an error of another form": ("anthropic", [{"object": "error", "message": "gone", "code": 40101}], ModelRequestError, "gone"),
    "a google finish reason": (
        "google",
        [{"candidates": [{"content": {"parts": [{"text": "Once"}]}, "finishReason": "ERROR"}]}],
        Unavailable,
        "'ERROR'",
    ),
    "google, ratings and no end": (
        "google",
        [{"candidates": [{"content": {"parts": [{"text": "Once"}]}}], "promptFeedback": {"safetyRatings": [{"category": "x"}]}}],
        Unavailable,
        "broke off",
    ),
    "google, an error in a list": ("google", [[{"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "no"}}]], ModelRequestError, "no"),  # type: ignore[list-item]
}  # fmt: skip


@pytest.mark.parametrize("api", ["openai", "openai-chat", "anthropic", "google"])
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (401, ModelRequestError),
        ("403", ModelRequestError),
        ("invalid_api_key", ModelRequestError),
        ("UNAUTHENTICATED", ModelRequestError),
        ("insufficient_quota", ModelRequestError),
        ("context_length_exceeded", ModelRequestError),
        (429, Unavailable),
        ("rate_limit_exceeded", Unavailable),
        ("overloaded_error", Unavailable),
        ("server_error", Unavailable),
        (None, Unavailable),
    ],
)
async def test_the_code_of_an_error_in_an_answer_counts_as_an_http_status(
    bench: Bench, api: str, code: int | str | None, error: type[Exception]
) -> None:
    """Whole or streamed, whether the code is a number or a text; the endpoint's words are in the error."""
    told = {"error": {"message": "So it is.", "code": code}}
    for turn in (Turn(events=[told]), Turn(failure=Failure(status=200, body=told))):
        with pytest.raises(error, match=r"So it is\."):
            await in_pieces(bench, api, turn)


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        ({"error": "model 'q' not found, try pulling it first"}, ModelRequestError, "try pulling"),
        ({"error": "Invalid API key"}, ModelRequestError, "Invalid API key"),
        ({"object": "error", "message": "maximum context length is 4096", "code": 40303}, ModelRequestError, "4096"),
        ({"choices": None, "base_resp": {"status_code": 1004, "status_msg": "login fail"}}, ModelRequestError, "login fail"),
        ({"detail": "busy"}, Unavailable, "busy"),
        ({"code": 401, "msg": "who are you?"}, ModelRequestError, "who are you"),
        ({"choices": [{"message": {"content": "Half"}, "error": {"code": 502, "message": "gone"}}]}, Unavailable, "502: gone"),
        ({"choices": [{"message": {"content": "Half"}, "finish_reason": "error"}]}, Unavailable, "'error'"),
    ],
)  # fmt: skip
async def test_an_error_with_status_200_has_the_words_of_the_server(
    bench: Bench, body: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        await bench.body("openai-chat", body)


async def test_an_unknown_finish_reason_is_named(bench: Bench) -> None:
    """The answer is taken."""
    reply, _ = await in_pieces(bench, "openai-chat", Turn(events=[chunk({"content": "a"}), chunk({}, "Finished")]))
    assert (reply.text, reply.finish_reason, reply.own_finish_reason) == ("a", "stop", "Finished")
    reply, _ = await in_pieces(bench, "openai-chat", Turn(events=[chunk({"content": "a"}), END]))
    assert reply.own_finish_reason == ""


@pytest.mark.parametrize("case", BROKEN)
async def test_error_events_in_a_stream_raise_the_matching_error(bench: Bench, case: str) -> None:
    api, events, kind, says = BROKEN[case]
    with pytest.raises(kind, match=says):
        await in_pieces(bench, api, Turn(events=events))


async def test_a_final_event_without_output_uses_the_items_streamed_before(bench: Bench) -> None:
    """Some servers send such a last event."""
    message = {"type": "message", "content": [{"type": "output_text", "text": "Hi."}]}
    events: list[dict[str, Any] | str] = [
        {"type": "response.output_item.done", "output_index": 0, "item": message},
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
    ]
    assert (await in_pieces(bench, "openai", Turn(events=events)))[0].text == "Hi."


async def test_two_streamed_messages_are_separated_as_in_a_whole_answer(bench: Bench) -> None:
    """Two messages of one answer."""
    items = [{"type": "message", "content": [{"type": "output_text", "text": text}]} for text in ("One.", "Two.")]
    events: list[dict[str, Any] | str] = [
        *({"type": "response.output_text.delta", "output_index": n, "delta": text} for n, text in enumerate(("One.", "Two."))),
        {"type": "response.completed", "response": {"status": "completed", "output": items}},
    ]  # fmt: skip
    reply, pieces = await in_pieces(bench, "openai", Turn(events=events))
    assert "".join(pieces) == reply.text == "One.\n\nTwo."


ERROR_EVENT = {"error": {"message": "this model cannot stream here", "type": "None", "param": "None", "code": "500"}}
"""As LiteLLM sends it: a status as a text, in the first event."""


def streamed(bench: Bench) -> list[bool]:
    """Of each request, whether it asked for a stream."""
    return [bool(request.json.get("stream")) or "stream" in request.path for request in bench.server.requests]


FAILED_STREAMS = {
    "an error event": Turn("ok", events=[ERROR_EVENT]),
    "no event": Turn("ok", events=[]),
    "nothing but its end": Turn("ok", events=["[DONE]"]),
    "no JSON": Turn("ok", events=["upstream failed"]),
}


@pytest.mark.parametrize("api", ["openai", "openai-chat"])
@pytest.mark.parametrize("form", FAILED_STREAMS)
async def test_after_two_streams_without_a_piece_a_model_is_asked_without_streaming_for_an_hour(
    bench: Bench, api: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one failed stream the run's next attempt streams again, and so it does after an hour."""
    clock = [1_000.0]
    monkeypatch.setattr(_sdk_client, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    bench.server.script("m", lambda body, nth: FAILED_STREAMS[form] if body.get("stream") else Turn("ok"))
    with pytest.raises(Unavailable):
        await bench.ask(api, on_text=[].append)
    assert (await bench.ask(api, on_text=[].append)).text == "ok"
    assert (await bench.ask(api, on_text=[].append)).text == "ok"
    assert streamed(bench) == [True, True, False, False]
    clock[0] += 3_601
    bench.server.script("m", lambda body, nth: Turn("ok"))
    assert (await bench.ask(api, on_text=[].append)).text == "ok"
    assert streamed(bench)[4:] == [True]


@pytest.mark.parametrize("api", ["openai", "openai-chat", "anthropic", "google"])
async def test_after_two_refused_streams_with_5xx_a_model_is_asked_without_streaming(bench: Bench, api: str) -> None:
    """As LiteLLM's proxy answers where the stream behind it fails. A busy endpoint (429, 529) is left to the run's retries."""

    def script(body: dict[str, Any], nth: int) -> Turn:
        return Turn("ok", failure=Failure(500) if streamed(bench)[-1] else None)

    bench.server.script("m", script)
    with pytest.raises(Unavailable, match="scripted failure 500"):
        await bench.ask(api, on_text=[].append)
    assert (await bench.ask(api, on_text=[].append)).text == "ok"
    assert streamed(bench) == [True, True, False]
    for provider in bench.providers.values():
        provider._client._whole_until.clear()  # type: ignore[attr-defined]
    bench.server.script("m", lambda body, nth: Turn(failure=Failure(529)))
    for _ in range(3):
        with pytest.raises(Unavailable, match="529"):
            await bench.ask(api, on_text=[].append)
    assert streamed(bench)[3:] == [True, True, True]


@pytest.mark.parametrize("api", ["openai", "openai-chat"])
async def test_an_answer_that_is_streamed_whole_breaks_the_row_of_failures(bench: Bench, api: str) -> None:
    for turn in (Turn(events=[ERROR_EVENT]), Turn("ok"), Turn(events=[ERROR_EVENT])):
        bench.server.script("m", [turn])
        if turn.text:
            assert (await bench.ask(api, on_text=[].append)).text == "ok"
            continue
        with pytest.raises(Unavailable):
            await bench.ask(api, on_text=[].append)
    assert streamed(bench) == [True, True, True]


@pytest.mark.parametrize("api", ["openai", "openai-chat"])
async def test_if_it_fails_without_streaming_as_well_the_error_of_the_stream_is_raised(bench: Bench, api: str) -> None:
    bench.server.script("m", lambda body, nth: FAILS_BOTH if not body.get("stream") else Turn(events=[ERROR_EVENT]))
    for requests in (1, 3):
        with pytest.raises(Unavailable, match="this model cannot stream here"):
            await bench.ask(api, on_text=[].append)
        assert len(bench.server.requests) == requests


FAILS_BOTH = Turn(failure=Failure(503))


async def test_a_stream_that_breaks_off_after_its_first_piece_is_not_asked_again(bench: Bench) -> None:
    """It can stream: the run retries it later."""
    begun = {"id": "c", "choices": [{"index": 0, "delta": {"content": "Hel"}}]}
    for requests in range(1, 5):
        with pytest.raises(Unavailable, match="cannot stream"):
            await in_pieces(bench, "openai-chat", Turn("ok", events=[begun, ERROR_EVENT]))
        assert len(bench.server.requests) == requests
    await in_pieces(bench, "openai-chat", Turn("ok"))
    assert all(streamed(bench))
