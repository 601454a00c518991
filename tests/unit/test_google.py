"""`google:`: contents that the API accepts, thought signatures, schemas, invalid calls and errors."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from mulligan.activities.models._legal_calls import legal_id
from mulligan.activities.models.google._google_client import GoogleClient
from mulligan.activities.models.google._google_contents import NO_SIGNATURE
from mulligan.activities.models.google.google import Google
from mulligan.activities.models.protocol import Reply, Request, Unavailable
from mulligan.endpoint import Endpoint
from mulligan.errors import DeclarationError, ModelRequestError
from mulligan.model_name import check_model
from mulligan.values import ErrorInfo, Message, ToolMessage, Usage, UserMessage
from mulligan.wire.agent_facts import Definition, OutputFormat, ToolDefinition
from tests.support.google_api import signature_of
from tests.support.openai_server import Failure, OpenAIServer, Reasoning, Turn
from tests.support.openai_stream import Break
from tests.support.openai_turn import Usage as Tokens
from tests.support.provider_fixtures import GO, SEARCH, Bench, assistant_message, result, tool_call


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Bench.open(monkeypatch) as bench:
        yield bench
        assert [refusal for refusal in bench.server.refusals if refusal.code != "expected"] == []


async def sent_contents(bench: Bench, messages: Sequence[Message], **more: Any) -> list[tuple[str, list[Any]]]:
    """The contents of the request for a conversation, which the strict server accepted."""
    bench.server.script("m", lambda body, nth: Turn("ok"))
    await bench.ask("google", messages, **more)
    return [(content["role"], content["parts"]) for content in bench.sent["contents"]]


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"text": value, **more}


def use(call_id: str, signature: str | None = NO_SIGNATURE, **arguments: Any) -> dict[str, Any]:
    signed = {"thoughtSignature": signature} if signature else {}
    return {**signed, "functionCall": {"id": call_id, "name": "search", "args": arguments}}


def answered(call_id: str, **response: str) -> dict[str, Any]:
    return {"functionResponse": {"id": call_id, "name": "search", "response": response or {"output": "found"}}}


FAILED = ToolMessage(
    role="tool", call_id="a", name="search", text="No.", error=ErrorInfo(kind="tool_error", message="No.")
)
SIGNED = signature_of(use("a", None))
CONVERSATIONS: list[tuple[str, list[Message], list[tuple[str, list[Any]]]]] = [
    ("a prompt", [GO], [("user", [text("Go.")])]),
    ("no text", [UserMessage(role="user", text=" \n")], [("user", [text("(no text)")])]),
    (
        "parallel calls of another provider are answered in one content, and a person's message follows",
        [GO, assistant_message("Wait.", tool_call("a"), tool_call("b")), result("a"), result("b"), GO],
        [
            ("user", [text("Go.")]),
            ("model", [text("Wait."), use("a"), use("b", None)]),
            ("user", [answered("a"), answered("b")]),
            ("user", [text("Go.")]),
        ],
    ),
    (
        "a failed call",
        [GO, assistant_message("", tool_call("a")), FAILED],
        [("user", [text("Go.")]), ("model", [use("a")]), ("user", [answered("a", error="No.")])],
    ),
    (
        "arguments that are not JSON, and an illegal id",
        [GO, assistant_message("", tool_call("a b", arguments="nope")), result("a b")],
        [
            ("user", [text("Go.")]),
            ("model", [use(legal_id("a b"))]),
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
        [assistant_message("One."), assistant_message("Two.")],
        [
            ("user", [text("Continue.")]),
            ("model", [text("One.")]),
            ("user", [text("Continue.")]),
            ("model", [text("Two.")]),
            ("user", [text("Continue.")]),
        ],
    ),
    (
        "signatures in their places",
        [
            GO,
            assistant_message(
                "Hi.",
                tool_call("a"),
                tool_call("b"),
                data={
                    "google": [
                        {"type": "text"},
                        {"type": "call", "signature": SIGNED},
                        {"type": "call"},
                    ]
                },
            ),
            result("a"),
            result("b"),
        ],
        [
            ("user", [text("Go.")]),
            ("model", [text("Hi."), use("a", SIGNED), use("b", None)]),
            ("user", [answered("a"), answered("b")]),
        ],
    ),
    (
        "somebody else's data",
        [GO, assistant_message("Hi.", data={"google": "?", "google@x": [{"type": "text", "signature": "s"}]}), GO],
        [("user", [text("Go.")]), ("model", [text("Hi.")]), ("user", [text("Go.")])],
    ),
]


@pytest.mark.parametrize(
    ("messages", "contents"), [row[1:] for row in CONVERSATIONS], ids=[row[0] for row in CONVERSATIONS]
)
async def test_each_content_with_calls_is_followed_by_their_results(
    bench: Bench, messages: list[Message], contents: list[tuple[str, list[Any]]]
) -> None:
    assert await sent_contents(bench, messages) == contents


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_thought_signatures_return_unchanged(bench: Bench, is_streamed: bool) -> None:
    """The server refuses signatures that were changed or moved, and a call without one in the current turn."""
    turns = [
        Turn(
            "Let me see.",
            calls=[("search", "{}", "a"), ("search", '{"q": 2}', "b")],
            reasoning=[Reasoning(["I think."])],
        ),
        Turn(calls=[("search", '{"q": 1}', "c")], reasoning=[Reasoning(["Once more."])]),
        Turn("Done.", reasoning=[Reasoning(["Good."])], usage=Tokens(10, 5, reasoning_tokens=3)),
        Turn("Again."),
    ]
    bench.server.script("m", turns)
    messages: list[Message] = [GO]
    on_text = (lambda piece: None) if is_streamed else None
    for turn in turns:
        reply = await bench.ask("google", messages, on_text=on_text)
        assert (reply.text, len(reply.calls)) == (turn.text or "", len(turn.calls))
        answer = assistant_message(reply.text, *reply.calls, data=reply.provider_data)
        messages += [answer, *(result(call.id) for call in reply.calls)]
        messages += [] if reply.calls else [GO]
    assert NO_SIGNATURE not in json.dumps(bench.sent)
    signed = [part for content in bench.sent["contents"] for part in content["parts"] if "thoughtSignature" in part]
    assert len(signed) == 3


async def test_signatures_of_another_model_are_replaced_if_they_are_refused(bench: Bench) -> None:
    data = {"google": [{"type": "call", "signature": "of-another-model"}]}
    bench.server.script("m", lambda body, nth: Turn("ok"))
    reply = await bench.ask("google", [GO, assistant_message("", tool_call("a"), data=data), result("a")])
    assert reply.text == "ok"
    [refused] = bench.server.refusals
    refused.code = "expected"
    assert bench.sent["contents"][1]["parts"] == [use("a")]


async def test_older_models_get_no_replaced_signatures(bench: Bench) -> None:
    contents: list[Message] = [GO, assistant_message("", tool_call("a")), result("a")]
    bench.server.script("gemini-2.5-flash", lambda body, nth: Turn("ok"))
    reply = await ask_model(bench, "gemini-2.5-flash", contents)
    assert (reply.text, bench.sent["contents"][1]["parts"]) == ("ok", [use("a", None)])


async def ask_model(bench: Bench, model: str, messages: Sequence[Message], **more: Any) -> Reply:
    provider = bench.providers["google"]
    items = [item for message in messages for item in provider.encode(message)]
    definition = Definition(instructions="", tools=[SEARCH], output=more.pop("output", None))
    return await provider.complete(Request(model, definition, items, messages, **more))


async def test_over_twenty_steps_each_request_begins_with_the_bytes_of_the_one_before(bench: Bench) -> None:
    """The provider caches by prefix on its own."""
    bench.server.script("m", lambda body, nth: Turn("ok"))
    messages: list[Message] = [GO]
    for step in range(20):
        await bench.ask("google", messages)
        messages += [assistant_message("", tool_call(f"c{step}")), result(f"c{step}", "found " * 50)]
    bodies = [request.body for request in bench.server.requests]
    for before, after in itertools.pairwise(bodies):
        assert before.endswith(b"]}")
        assert after.startswith(before.removesuffix(b"]}") + b",")
    assert sum(map(len, bodies[:-1])) / sum(map(len, bodies)) > 0.89


async def test_thoughts_are_part_of_the_output_and_cached_tokens_of_the_input(bench: Bench) -> None:
    usage = Tokens(1_000, 50, cached_input_tokens=900, reasoning_tokens=20)
    for on_text in (None, lambda piece: None):
        reply = await bench.answer("google", Turn("ok", usage=usage), on_text=on_text)
        assert reply.usage == Usage(input_tokens=1_000, output_tokens=50, cached_input_tokens=900, reasoning_tokens=20)


SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    (
        {"max_tokens": 7, "stop": "X", "top_p": 1},
        {"generationConfig": {"maxOutputTokens": 7, "stopSequences": ["X"], "topP": 1}},
    ),
    (
        {"thinking_config": {"include_thoughts": True}, "openai": {"store": True}},
        {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}},
    ),
    ({"tool_choice": "required"}, {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}),
    (
        {"tool_choice": {"type": "function", "function": {"name": "search"}}},
        {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["search"]}}},
    ),
    ({"temperature": 1, "google": {"temperature": 0}}, {"generationConfig": {"temperature": 0}}),
    (
        {"safety_settings": [{"category": "C", "threshold": "T"}]},
        {"safetySettings": [{"category": "C", "threshold": "T"}]},
    ),
]


@pytest.mark.parametrize(("settings", "expected"), SETTINGS)
async def test_settings_have_the_form_of_the_api(
    bench: Bench, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    await bench.answer("google", Turn("ok"), settings=settings)
    sent = {name: value for name, value in bench.sent.items() if name not in ("contents", "tools", "systemInstruction")}
    assert sent == expected
    assert bench.sent["systemInstruction"] == {"parts": [{"text": "Be kind."}]}


SCHEMAS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "string", "minLength": 2, "description": "A name."}, {"type": "string", "description": "A name. (minLength: 2)"}),
    ({"const": "a", "title": "T"}, {"enum": ["a"], "title": "T"}),
    ({"enum": [None, "a"]}, {"description": '(enum: [null, "a"])'}),
    ({"type": "integer", "default": 3, "$schema": "x"}, {"type": "integer", "description": "(default: 3)"}),
    ({"allOf": [{"$ref": "#/definitions/A"}]}, {"$ref": "#/$defs/A"}),
    ({"$ref": "#/$defs/A", "description": "An A."}, {"anyOf": [{"$ref": "#/$defs/A"}], "description": "An A."}),
    (
        {"type": "object", "properties": {"pattern": {"type": "string", "pattern": "^a"}}, "definitions": {"A": {"const": True}}},
        {
            "type": "object",
            "properties": {"pattern": {"type": "string", "description": '(pattern: "^a")'}},
            "$defs": {"A": {"description": "(const: true)"}},
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "expected"), SCHEMAS)
async def test_a_schema_has_only_keywords_that_the_api_accepts(
    bench: Bench, schema: dict[str, Any], expected: dict[str, Any]
) -> None:
    """The rest is written into the description; arguments are validated in either case."""
    tool = ToolDefinition(name="search", description="", parameters=schema)
    await bench.answer("google", Turn("ok"), tools=[tool])
    [declared] = bench.sent["tools"][0]["functionDeclarations"]
    assert declared["parametersJsonSchema"] == expected


async def test_a_name_that_begins_with_a_digit_is_changed_and_changed_back(bench: Bench) -> None:
    tool = ToolDefinition(name="1password__read", description="", parameters={"type": "object"})
    messages: list[Message] = [
        GO,
        assistant_message("", tool_call("a", "1password__read")),
        result("a").model_copy(update={"name": tool.name}),
    ]
    turn = Turn(calls=[("_1password__read", "{}", "b")])
    bench.server.script("m", lambda body, nth: turn)
    reply = await bench.ask("google", messages, tools=[tool])
    assert [call.name for call in reply.calls] == ["1password__read"]


async def test_a_format_that_cannot_be_used_with_tools_is_part_of_the_instructions(bench: Bench) -> None:
    """Models before Gemini 3; newer ones get the schema."""
    output = OutputFormat(name="Answer", json_schema={"type": "object", "properties": {"usd": {"type": "number"}}})
    bench.server.script("gemini-2.5-flash", lambda body, nth: Turn("{}"))
    for _ in range(2):
        assert (await ask_model(bench, "gemini-2.5-flash", [GO], output=output)).text == "{}"
    [refused] = bench.server.refusals
    refused.code = "expected"
    assert '"usd"' in bench.sent["systemInstruction"]["parts"][0]["text"]
    await bench.answer("google", Turn("{}"), output=output)
    assert bench.sent["generationConfig"]["responseJsonSchema"] == output.json_schema


ENDS: list[tuple[Turn, str, str]] = [
    (Turn("ok"), "stop", "ok"),
    (Turn("half", finish_reason="length"), "length", "half"),
    (Turn("Well,", finish_reason="content_filter"), "content_filter", "Well,"),
    (Turn(refusal="No."), "content_filter", ""),
]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(("turn", "reason", "said"), ENDS)
async def test_why_an_answer_ended(bench: Bench, turn: Turn, reason: str, said: str, is_streamed: bool) -> None:
    """An answer may be withheld, and a prompt blocked."""
    reply = await bench.answer("google", turn, on_text=(lambda piece: None) if is_streamed else None)
    assert (reply.finish_reason, reply.text) == (reason, said)


def candidate(**more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": []}, **more}]}


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("Malformed function call: print(default_api.search(q='x'))", "search"),
        ("Malformed function call: call search{q: 1", "search"),
        ("", ""),
    ],
)
async def test_a_call_that_the_api_rejected_gets_feedback_like_others(bench: Bench, message: str, name: str) -> None:
    body = candidate(finishReason="MALFORMED_FUNCTION_CALL", finishMessage=message.replace("call search{", "search{"))
    [call] = (await bench.body("google", body)).calls
    assert call.name == name
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(call.arguments)


UNUSABLE: list[tuple[dict[str, Any], type[Exception]]] = [
    ({}, Unavailable),
    (candidate(finishReason="OTHER"), Unavailable),
    ({"error": {"code": 503, "message": "overloaded"}}, Unavailable),
    ({"error": {"code": 400, "message": "no"}}, ModelRequestError),
]


@pytest.mark.parametrize(("body", "error"), UNUSABLE)
async def test_an_answer_without_a_candidate(bench: Bench, body: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        await bench.body("google", body)


async def test_a_call_that_was_cut_off_has_no_valid_arguments(bench: Bench) -> None:
    turn = Turn(calls=[("search", '{"q": 1}', "a"), ("search", '{"q": "x"}', "b")], finish_reason="length")
    first, last = (await bench.answer("google", turn)).calls
    assert (first.arguments, last.arguments) == ('{"q": 1}', '{"q": "x"')


async def test_a_stream_that_breaks_off_is_unavailable(bench: Bench) -> None:
    with pytest.raises(Unavailable):
        await bench.answer("google", Turn("x" * 50, break_first=[Break(3, drop=True)]), on_text=lambda piece: None)


async def test_the_time_to_wait_is_read_from_the_error(bench: Bench) -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"}
    body = {"error": {"code": 429, "message": "Quota exceeded.", "status": "RESOURCE_EXHAUSTED", "details": [info]}}
    with pytest.raises(Unavailable, match="Quota exceeded") as raised:
        await bench.answer("google", Turn(failure=Failure(429, body)))
    assert (raised.value.status, raised.value.retry_after) == (429, 37.0)
    assert raised.value.__cause__ is None


async def test_a_key_that_an_endpoint_quotes_is_replaced(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "very-secret-key-4711")
    body = {"error": {"code": 403, "message": "very-secret-key-4711 is wrong"}}
    bench.server.script("m", [Turn(failure=Failure(403, body))])
    endpoint = Endpoint(
        name="other", base_url=f"{bench.server.base_url}beta", api_key_env="MY_KEY", headers={"X-Team": "a"}
    )
    bench.providers["google"] = Google(GoogleClient(endpoint))
    with pytest.raises(ModelRequestError, match=r"\[key\] is wrong"):
        await bench.ask("google")
    headers = bench.server.requests[-1].headers
    assert (headers["x-goog-api-key"], headers["x-team"]) == ("very-secret-key-4711", "a")


async def test_a_missing_key_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    async with OpenAIServer():
        for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(ModelRequestError, match="There is no key for the model's endpoint: set GEMINI_API_KEY"):
            await GoogleClient().model_names()


async def test_the_endpoints_models_are_listed(bench: Bench) -> None:
    bench.server.script("gemini-3.5-flash", [])
    assert isinstance(provider := bench.providers["google"], Google)
    assert await provider.model_names() == ["gemini-3.5-flash"]


async def test_at_google_cloud_a_model_has_the_path_of_its_publisher(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package's own variables say so."""
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    with pytest.raises(ModelRequestError):
        await bench.ask("google")
    assert bench.server.requests[-1].path == "/v1beta1/publishers/google/models/m:generateContent"
    bench.server.requests.clear()


def test_without_its_extra_a_model_cannot_be_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mulligan.extras.find_spec", lambda package: None)
    with pytest.raises(DeclarationError, match=r"uv add 'mulligan\[google\]'"):
        check_model("google:gemini", "agent 'a'")
