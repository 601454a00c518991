"""`anthropic:`: turns that the API accepts, thinking, caching, limits, formats and errors."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from mulligan.activities.models._legal_calls import legal_id
from mulligan.activities.models.anthropic._anthropic_client import AnthropicClient
from mulligan.activities.models.anthropic.anthropic import MAX_TOKENS, Anthropic
from mulligan.activities.models.protocol import Unavailable
from mulligan.endpoint import Endpoint
from mulligan.errors import DeclarationError, ModelRequestError
from mulligan.model_name import check_model
from mulligan.values import ErrorInfo, Message, ToolMessage, Usage, UserMessage
from mulligan.wire.agent_facts import OutputFormat
from tests.support.anthropic_api import signature_of
from tests.support.openai_server import Failure, OpenAIServer, Reasoning, Turn
from tests.support.openai_stream import Break
from tests.support.openai_turn import Usage as Tokens
from tests.support.provider_fixtures import GO, Bench, assistant_message, result, tool_call

THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": signature_of("Hm.")}
REDACTED = {"type": "redacted_thinking", "data": "red_1"}
BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 2_000}}


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Bench.open(monkeypatch) as bench:
        yield bench
        assert [refusal for refusal in bench.server.refusals if refusal.code != "expected"] == []


async def sent_turns(bench: Bench, messages: Sequence[Message], **more: Any) -> list[tuple[str, list[Any]]]:
    """The turns of the request for a conversation, which the strict server accepted."""
    bench.server.script("m", lambda body, nth: Turn("ok"))
    await bench.ask("anthropic", messages, **more)
    return [(turn["role"], turn["content"]) for turn in bench.sent["messages"]]


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def use(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "search", "input": arguments}


def answered(call_id: str, content: str = "found") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def with_thinking(*blocks: Any, text: str = "", calls: Sequence[str] = ()) -> Message:
    return assistant_message(text, *map(tool_call, calls), data={"anthropic": list(blocks)})


FAILED = ToolMessage(
    role="tool", call_id="a", name="search", text="", error=ErrorInfo(kind="tool_error", message="No.")
)
CONVERSATIONS: list[tuple[str, list[Message], list[tuple[str, list[Any]]]]] = [
    ("a prompt", [GO], [("user", [text("Go.")])]),
    ("no text", [UserMessage(role="user", text=" \n")], [("user", [text("(no text)")])]),
    (
        "parallel calls are answered in one turn, and a person's message follows",
        [GO, assistant_message("Wait.", tool_call("a"), tool_call("b")), result("a"), result("b"), GO],
        [
            ("user", [text("Go.")]),
            ("assistant", [text("Wait."), use("a"), use("b")]),
            ("user", [answered("a"), answered("b"), text("Go.")]),
        ],
    ),
    (
        "a failed call without text",
        [GO, assistant_message("", tool_call("a")), FAILED],
        [
            ("user", [text("Go.")]),
            ("assistant", [use("a")]),
            ("user", [{"type": "tool_result", "tool_use_id": "a", "content": "(no result)", "is_error": True}]),
        ],
    ),
    (
        "arguments that are not JSON, and an illegal id",
        [GO, assistant_message("", tool_call("a b", arguments="nope")), result("a b")],
        [
            ("user", [text("Go.")]),
            ("assistant", [use(legal_id("a b"))]),
            ("user", [answered(legal_id("a b"))]),
        ],
    ),
    (
        "an empty answer, which was rejected",
        [GO, assistant_message(), UserMessage(role="user", text="Answer.")],
        [("user", [text("Go."), text("Answer.")])],
    ),
    (
        "it begins and ends with an answer, and two answers are adjacent",
        [assistant_message("One."), assistant_message("Two. ")],
        [
            ("user", [text("Continue.")]),
            ("assistant", [text("One.")]),
            ("user", [text("Continue.")]),
            ("assistant", [text("Two. ")]),
            ("user", [text("Continue.")]),
        ],
    ),
    (
        "thinking in its order",
        [GO, with_thinking(THOUGHT, {"type": "text"}, REDACTED, text="Hi.", calls=["a"]), result("a")],
        [
            ("user", [text("Go.")]),
            ("assistant", [THOUGHT, text("Hi."), REDACTED, use("a")]),
            ("user", [answered("a")]),
        ],
    ),
    (
        "thinking that led to nothing",
        [GO, with_thinking(THOUGHT), GO],
        [("user", [text("Go."), text("Go.")])],
    ),
    (
        "thinking without its signature, and somebody else's",
        [
            GO,
            assistant_message(
                "Hi.",
                data={
                    "anthropic": [{"type": "thinking", "thinking": "Hm."}, 1, "?"],
                    "anthropic@other": [THOUGHT],
                    "openai": [{"type": "reasoning"}],
                },
            ),
            GO,
        ],
        [("user", [text("Go.")]), ("assistant", [text("Hi.")]), ("user", [text("Go.")])],
    ),
]


@pytest.mark.parametrize(
    ("messages", "turns"), [row[1:] for row in CONVERSATIONS], ids=[row[0] for row in CONVERSATIONS]
)
async def test_turns_alternate_and_each_call_is_answered_in_the_next_turn(
    bench: Bench, messages: list[Message], turns: list[tuple[str, list[Any]]]
) -> None:
    assert await sent_turns(bench, messages) == turns


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_thinking_returns_unchanged_with_its_signature(bench: Bench, is_streamed: bool) -> None:
    """The server refuses thinking that was changed, and an answer in a loop of tools that does not begin with it."""
    turns: list[Any] = [
        Turn("Let me see.", calls=[("search", "{}", "a")], reasoning=[Reasoning(["I ☃ think."]), Reasoning([])]),
        Turn(calls=[("search", '{"q": 1}', "b")], reasoning=[Reasoning(["Once more."])]),
        Turn("Done.", reasoning=[Reasoning(["Good."])], usage=Tokens(10, 5, reasoning_tokens=3)),
    ]
    bench.server.script("m", turns)
    messages: list[Message] = [GO]
    on_text = (lambda piece: None) if is_streamed else None
    for turn in turns:
        reply = await bench.ask("anthropic", messages, settings=BUDGET, on_text=on_text)
        assert (reply.text, [call.id for call in reply.calls]) == (
            turn.text or "",
            [call_id for _, _, call_id in turn.calls],
        )
        messages += [
            assistant_message(reply.text, *reply.calls, data=reply.provider_data),
            *(result(call.id) for call in reply.calls),
        ]
    assert reply.usage.reasoning_tokens == 3
    kinds = [block["type"] for block in bench.sent["messages"][1]["content"]]
    assert kinds == ["thinking", "redacted_thinking", "text", "tool_use"]


async def test_thinking_is_off_while_an_answer_of_another_provider_waits_for_it(bench: Bench) -> None:
    """With a budget for thinking, the API refuses a loop of tools that does not begin with its own thinking."""
    messages: list[Message] = [GO, assistant_message("", tool_call("a")), result("a")]
    await sent_turns(bench, messages, settings=BUDGET)
    assert bench.sent["thinking"] == {"type": "disabled"}
    await sent_turns(bench, [*messages, assistant_message("Done."), GO], settings=BUDGET)
    assert bench.sent["thinking"] == BUDGET["thinking"]


async def test_thinking_of_another_model_is_left_out_if_it_is_refused(bench: Bench) -> None:
    foreign = {**THOUGHT, "signature": "sig_of_another_model"}
    messages = [GO, with_thinking(foreign, calls=["a"]), result("a")]
    bench.server.script("m", [Turn("-"), Turn("ok")])
    assert (await bench.ask("anthropic", messages, settings=BUDGET)).text == "ok"
    [refused] = bench.server.refusals
    assert "Invalid `signature` in `thinking` block" in refused.message
    refused.code = "expected"
    assert [block["type"] for block in bench.sent["messages"][1]["content"]] == ["tool_use"]


def history(steps: int, calls: int = 1) -> list[Message]:
    messages: list[Message] = [GO]
    for step in range(steps):
        ids = [f"call_{step}_{number}" for number in range(calls)]
        thought = f"Step {step}."
        block = {"type": "thinking", "thinking": thought, "signature": signature_of(thought)}
        messages += [with_thinking(block, calls=ids), *(result(each, "found " * 50) for each in ids)]
    return messages


async def test_over_twenty_steps_each_request_begins_with_the_bytes_of_the_one_before(bench: Bench) -> None:
    """So what was cached at the end of a request is read by the next one: 95 % of all input here."""
    bench.server.script("m", lambda body, nth: Turn("ok"))
    for step in range(20):
        await bench.ask("anthropic", history(step))
    bodies = [request.body for request in bench.server.requests]
    for before, after in itertools.pairwise(bodies):
        assert before.endswith(b"]}")
        assert after.startswith(before.removesuffix(b"]}") + b",")
    cached = sum(map(len, bodies[:-1])) / sum(map(len, bodies))
    assert cached > 0.89
    assert all(json.loads(body)["cache_control"] == {"type": "ephemeral"} for body in bodies)
    assert bench.sent["system"] == [{**text("Be kind."), "cache_control": {"type": "ephemeral"}}]


async def test_after_a_step_of_many_calls_the_end_of_the_request_before_it_is_marked(bench: Bench) -> None:
    """The API looks back 20 blocks for what it has cached."""
    turns = await sent_turns(bench, history(2, calls=15))
    marked = [(n, block) for n, (_, blocks) in enumerate(turns) for block in blocks if "cache_control" in block]
    assert [(turn, block["tool_use_id"]) for turn, block in marked] == [(2, "call_0_14")]


async def test_cached_tokens_are_part_of_the_input(bench: Bench) -> None:
    usage = Tokens(1_000, 5, cached_input_tokens=900, cache_write_tokens=60)
    for on_text in (None, lambda piece: None):
        reply = await bench.answer("anthropic", Turn("ok", usage=usage), on_text=on_text)
        assert reply.usage == Usage(input_tokens=1_000, output_tokens=5, cached_input_tokens=900, cache_write_tokens=60)


async def test_a_model_with_a_lower_limit_of_tokens_is_asked_again_with_it(bench: Bench) -> None:
    """The API requires `max_tokens`; from then on the limit is known."""
    bench.server.anthropic.limits["m"] = 8_192
    await bench.answer("anthropic", Turn("ok"))
    [refused] = bench.server.refusals
    refused.code = "expected"
    await bench.answer("anthropic", Turn("ok"))
    assert [request.json["max_tokens"] for request in bench.server.requests] == [MAX_TOKENS, 8_192, 8_192]


SETTINGS: list[tuple[dict[str, Any], bool, dict[str, Any]]] = [
    ({}, True, {"max_tokens": MAX_TOKENS}),
    ({}, False, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
    ({"max_output_tokens": 7, "stop": "X"}, True, {"max_tokens": 7, "stop_sequences": ["X"]}),
    (BUDGET, True, {"max_tokens": MAX_TOKENS + 2_000, **BUDGET}),
    ({"tool_choice": "required"}, True, {"tool_choice": {"type": "any"}}),
    (
        {"tool_choice": {"type": "function", "name": "search"}},
        True,
        {"tool_choice": {"type": "tool", "name": "search"}},
    ),
    ({"tool_choice": {"type": "none"}}, False, {"tool_choice": {"type": "none"}}),
    ({"temperature": 1, "anthropic": {"temperature": 0}, "openai": {"top_p": 1}}, True, {"temperature": 0}),
]


@pytest.mark.parametrize(("settings", "parallel", "expected"), SETTINGS)
async def test_settings_have_the_form_of_the_api(
    bench: Bench, settings: dict[str, Any], parallel: bool, expected: dict[str, Any]
) -> None:
    """Those of OpenAI's form are translated; a table of the provider's name is for it alone."""
    bench.server.anthropic.samplers.add("m")
    await bench.answer("anthropic", Turn("ok"), settings=settings, parallel_tool_calls=parallel)
    assert {name: bench.sent[name] for name in expected} == expected
    assert not {"openai", "anthropic", "parallel_tool_calls", "stop"} & bench.sent.keys()


async def test_a_model_without_settings_of_sampling_is_asked_again_without_them(bench: Bench) -> None:
    """Newer models refuse them; in a list of models they are for the others."""
    for _ in range(2):
        assert (await bench.answer("anthropic", Turn("ok"), settings={"temperature": 0, "top_p": 1})).text == "ok"
    assert ["temperature" in request.json for request in bench.server.requests] == [True, False, False]
    [refused] = bench.server.refusals
    refused.code = "expected"


async def test_tools_of_an_earlier_agent_are_declared_if_the_agent_has_none(bench: Bench) -> None:
    await sent_turns(bench, [GO, assistant_message("", tool_call("a")), result("a"), GO], tools=())
    assert [tool["name"] for tool in bench.sent["tools"]] == ["search"]
    assert bench.sent["tool_choice"] == {"type": "none"}


PRICE = {"type": "object", "properties": {"usd": {"type": "number", "minimum": 0}}, "required": ["usd"]}
TREE = {
    "$defs": {"Tree": {"type": "object", "properties": {"to": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}, "required": ["to"]}},
    "$ref": "#/$defs/Tree",
}  # fmt: skip
TABLE = {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(("schema", "is_sent"), [(PRICE, True), (TREE, False), (TABLE, False)])
async def test_the_answers_schema_is_sent_or_is_part_of_the_instructions(
    bench: Bench, schema: dict[str, Any], is_sent: bool
) -> None:
    """The API does not support every schema; answers are validated in either case."""
    output = OutputFormat(name="Answer", json_schema=schema)
    for _ in range(2):
        await bench.answer("anthropic", Turn("{}"), output=output)
    [system] = bench.sent["system"]
    assert ("output_config" in bench.sent) is is_sent
    assert (json.dumps(schema) in system["text"]) is not is_sent
    assert len(bench.server.refusals) == (1 if schema is TREE else 0)
    for refused in bench.server.refusals:
        refused.code = "expected"


ENDS: list[tuple[Turn, str, str]] = [
    (Turn("ok"), "stop", "ok"),
    (Turn("half", finish_reason="length"), "length", "half"),
    (Turn("", finish_reason="content_filter"), "refusal", ""),
    (Turn(refusal="I will not."), "refusal", "I will not."),
]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(("turn", "reason", "said"), ENDS)
async def test_why_an_answer_ended(bench: Bench, turn: Turn, reason: str, said: str, is_streamed: bool) -> None:
    reply = await bench.answer("anthropic", turn, on_text=(lambda piece: None) if is_streamed else None)
    assert (reply.finish_reason, reply.text) == (reason, said)


@pytest.mark.parametrize(("written", "read"), [('{"q": "x"}', '{"q": "x"'), ('{"q": "', '{"q": "'), ("", "{")])
async def test_a_call_that_was_cut_off_has_no_valid_arguments(bench: Bench, written: str, read: str) -> None:
    """Without streaming, the API completes the object: executing it would be executing a part of the call."""
    turn = Turn(calls=[("search", '{"q": 1}', "a"), ("search", written, "b")], finish_reason="length")
    first, last = (await bench.answer("anthropic", turn)).calls
    assert (first.arguments, last.arguments) == ('{"q": 1}', read)


async def test_pieces_of_several_texts_are_the_text_of_the_reply(bench: Bench) -> None:
    def block(index: int, *pieces: str) -> list[dict[str, Any]]:
        deltas = [
            {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": piece}}
            for piece in pieces
        ]
        return [{"type": "content_block_start", "index": index, "content_block": text("")}, *deltas]

    events: list[dict[str, Any] | str] = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 3}}},
        *block(0, "One", "."),
        *block(1),
        *block(2, "Two."),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    pieces: list[str] = []
    reply = await bench.answer("anthropic", Turn(events=events), on_text=pieces.append)
    assert reply.text == "One.\n\nTwo." == "".join(pieces)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (3, 2)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("overloaded_error", Unavailable),
        ("rate_limit_error", Unavailable),
        ("invalid_request_error", ModelRequestError),
    ],
)
async def test_an_error_in_the_middle_of_a_stream_has_the_meaning_of_its_type(
    bench: Bench, kind: str, error: type[Exception]
) -> None:
    start = {"type": "content_block_start", "index": 0, "content_block": text("Hal")}
    events: list[dict[str, Any] | str] = [
        {"type": "message_start", "message": {}},
        start,
        {"type": "error", "error": {"type": kind, "message": "Busy."}},
    ]
    with pytest.raises(error, match="Busy"):
        await bench.answer("anthropic", Turn("ok", events=events, failure=None), on_text=lambda piece: None)


async def test_a_stream_that_breaks_off_is_unavailable(bench: Bench) -> None:
    with pytest.raises(Unavailable):
        await bench.answer("anthropic", Turn("x" * 50, break_first=[Break(6, drop=True)]), on_text=lambda piece: None)


@pytest.mark.parametrize(("status", "error"), [(402, ModelRequestError), (413, ModelRequestError), (529, Unavailable)])
async def test_errors_have_the_providers_message_and_request_id(
    bench: Bench, status: int, error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"scripted failure {status}") as raised:
        await bench.answer("anthropic", Turn(failure=Failure(status, headers={"request-id": "req_7"})))
    assert raised.value.__cause__ is None
    if isinstance(raised.value, ModelRequestError):
        assert raised.value.request_id == "req_7"


async def test_a_key_that_an_endpoint_quotes_is_replaced(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-ant-very-secret-4711")
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Default: 1")
    body = {"error": {"type": "authentication_error", "message": "sk-ant-very-secret-4711 is wrong"}}
    bench.server.script("m", [Turn(failure=Failure(401, body))])
    endpoint = Endpoint(name="other", base_url=bench.server.base_url, api_key_env="MY_KEY", headers={"X-Team": "a"})
    bench.providers["anthropic"] = Anthropic(AnthropicClient(endpoint))
    with pytest.raises(ModelRequestError, match=r"\[key\] is wrong.*MY_KEY"):
        await bench.ask("anthropic")
    headers = bench.server.requests[-1].headers
    assert (headers.get("x-team"), headers.get("x-default")) == ("a", None)
    assert "sk-ant-very-secret-4711" in f"{headers.get('authorization')}{headers.get('x-api-key')}"


async def test_a_missing_key_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    async with OpenAIServer() as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url)
        monkeypatch.setenv("HOME", "/nonexistent")
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        with pytest.raises(ModelRequestError, match="There is no key for the model's endpoint: set ANTHROPIC_API_KEY"):
            await AnthropicClient().model_names()


async def test_the_endpoints_models_are_listed(bench: Bench) -> None:
    bench.server.script("claude", [])
    assert isinstance(provider := bench.providers["anthropic"], Anthropic)
    assert await provider.model_names() == ["claude"]


def test_without_its_extra_a_model_cannot_be_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mulligan.extras.find_spec", lambda package: None)
    with pytest.raises(DeclarationError, match=r"uv add 'mulligan\[anthropic\]'"):
        check_model("anthropic:claude", "agent 'a'")
