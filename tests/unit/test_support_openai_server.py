"""The scripted OpenAI server: what it answers to the real client, what it refuses, what it remembers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest
from dirty_equals import IsPartialDict, IsStr
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem

from tests.support.openai_server import Failure, OpenAIServer, Reasoning, Turn, Usage

CHAT, RESPONSES = "/chat/completions", "/responses"
OBJECT = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": False}
USER = {"role": "user", "content": "Where is order 7?"}


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer() as running:
        running.script("m", [Turn("first"), Turn("second"), Turn("third")])
        yield running


@pytest.fixture
async def client(server: OpenAIServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.base_url, api_key="test", max_retries=0) as connected:
        yield connected


async def post(server: OpenAIServer, path: str, body: object, key: str = "Bearer test") -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": key}
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.base_url + path, data=data, headers=headers) as reply,
    ):
        return reply.status, await reply.json()


# --- what it answers


async def test_chat_replies_are_full_typed_objects(server: OpenAIServer, client: AsyncOpenAI):
    usage = Usage(input_tokens=20, output_tokens=7, cached_input_tokens=8, reasoning_tokens=3)
    calls = [("search", '{"q": "x"}'), ("no such tool!", "{broken", "same id")]
    server.script("m", [Turn("Let me look.", calls=calls, usage=usage), Turn("Found.", model="m-2026-01-01")])
    reply = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])

    assert isinstance(reply, ChatCompletion)
    choice = reply.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me look.")
    assert choice.message.tool_calls is not None
    assert [call.model_dump() for call in choice.message.tool_calls] == [
        {
            "id": IsStr(regex=r"call_[0-9a-f]{24}"),
            "type": "function",
            "function": {"name": "search", "arguments": '{"q": "x"}'},
        },
        {"id": "same id", "type": "function", "function": {"name": "no such tool!", "arguments": "{broken"}},
    ]
    assert reply.usage is not None
    assert reply.usage.model_dump() == IsPartialDict(
        prompt_tokens=20,
        completion_tokens=7,
        total_tokens=27,
        prompt_tokens_details=IsPartialDict(cached_tokens=8),
        completion_tokens_details=IsPartialDict(reasoning_tokens=3),
    )
    # strictly: the client builds its objects without checking them
    ChatCompletion.model_validate(reply.model_dump(), strict=True)

    assistant: Any = choice.message.model_dump(include={"role", "content"})
    again = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}, assistant, {"role": "user", "content": "and?"}]
    )
    assert (again.choices[0].message.content, again.model) == ("Found.", "m-2026-01-01")
    assert again._request_id is not None
    assert server.refusals == []


async def test_responses_replies_are_full_typed_objects_and_their_input_fields_go_back(
    server: OpenAIServer, client: AsyncOpenAI
):
    usage = Usage(input_tokens=20, output_tokens=7, cached_input_tokens=8, reasoning_tokens=3)
    turn = Turn("Let me look.", calls=[("search", '{"q": "x"}')], reasoning=[Reasoning()], usage=usage)
    server.script("m", [turn, Turn("Found.")])
    asked: dict[str, Any] = {"model": "m", "store": False, "include": ["reasoning.encrypted_content"]}
    reply = await client.responses.create(**asked, input="hi")

    thought, said, call = reply.output
    assert isinstance(thought, ResponseReasoningItem)
    assert isinstance(said, ResponseOutputMessage)
    assert isinstance(call, ResponseFunctionToolCall)
    assert (thought.status, thought.summary[0].text) == ("completed", "I thought about it.")
    assert (reply.status, reply.output_text, call.arguments) == ("completed", "Let me look.", '{"q": "x"}')
    assert reply.usage is not None
    assert reply.usage.model_dump() == IsPartialDict(
        input_tokens=20,
        output_tokens=7,
        input_tokens_details=IsPartialDict(cached_tokens=8),
        output_tokens_details={"reasoning_tokens": 3},
    )
    type(reply).model_validate_json(reply.model_dump_json(), strict=True)

    back: list[Any] = [
        {"role": "user", "content": "hi"},
        thought.model_dump(include={"id", "type", "summary", "encrypted_content"}),
        said.model_dump(include={"id", "type", "role", "content", "status"}, exclude_none=True),
        call.model_dump(include={"type", "call_id", "name", "arguments"}),
        {"type": "function_call_output", "call_id": call.call_id, "output": "nothing"},
    ]
    again = await client.responses.create(**asked, input=back)
    assert again.output_text == "Found."
    assert server.refusals == []

    # as the client has it, the reasoning item carries what is no input
    back[1] = thought.model_dump(exclude_none=True)
    with pytest.raises(openai.BadRequestError, match=r"Unknown parameter: 'input\[1\]\.status'"):
        await client.responses.create(**asked, input=back)


@pytest.mark.parametrize(
    ("turn", "chat", "responses"),
    [
        (Turn("cut o", finish_reason="length"), "length", ("incomplete", "max_output_tokens")),
        (Turn(finish_reason="content_filter"), "content_filter", ("incomplete", "content_filter")),
        (Turn(refusal="I will not."), "stop", ("completed", None)),
        (Turn(calls=[("f", "{")], finish_reason="length"), "length", ("incomplete", "max_output_tokens")),
        (Turn("lone \ud800 surrogate", usage=None), "stop", ("completed", None)),
    ],
)
async def test_endings(
    server: OpenAIServer, client: AsyncOpenAI, turn: Turn, chat: str, responses: tuple[str, str | None]
):
    server.script("m", [turn])
    completion = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert completion.choices[0].finish_reason == chat
    assert completion.choices[0].message.content == turn.text
    assert completion.choices[0].message.refusal == turn.refusal
    response = await client.responses.create(model="m", input="hi", store=False)
    reason = response.incomplete_details.reason if response.incomplete_details else None
    assert (response.status, reason) == responses
    assert response.output_text == (turn.text or "")
    if turn.refusal:
        assert isinstance(response.output[0], ResponseOutputMessage)
        assert response.output[0].content[0].model_dump() == {"type": "refusal", "refusal": "I will not."}


async def test_a_function_may_write_the_script(server: OpenAIServer, client: AsyncOpenAI):
    server.script("m", lambda request, nth: Turn(f"{nth}: {request['messages'][-1]['content']}"))
    messages: list[Any] = [USER, {"role": "assistant", "content": "Which?"}, {"role": "user", "content": "this"}]
    reply = await client.chat.completions.create(model="m", messages=messages)
    assert reply.choices[0].message.content == "1: this"


async def test_first_attempts_fail_for_each_run_apart(server: OpenAIServer, client: AsyncOpenAI):
    busy = Failure(429, headers={"Retry-After": "7"})
    server.script("m", [Turn("done", fail_first=[busy, Failure(503, body="<h1>no</h1>")])])

    async def attempt(run: str) -> str | None:
        reply = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], safety_identifier=run
        )
        return reply.choices[0].message.content

    for run in ("a", "b"):
        with pytest.raises(openai.RateLimitError) as limited:
            await attempt(run)
        assert limited.value.response.headers["retry-after"] == "7"
        assert limited.value.request_id is not None
        with pytest.raises(openai.InternalServerError):
            await attempt(run)
        assert await attempt(run) == "done"
    assert [request.status for request in server.requests_of("m", "b")] == [429, 503, 200]
    assert server.refusals == []  # a scripted failure is none


async def test_a_failure_for_every_attempt(server: OpenAIServer, client: AsyncOpenAI):
    told = {"error": {"message": "too long", "type": "invalid_request_error", "param": "input", "code": "too_long"}}
    server.script("m", [Turn(failure=Failure(400, body=told))])
    for _ in range(2):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="m", input="hi", store=False)
        assert (refused.value.code, refused.value.param) == ("too_long", "input")


async def test_a_nonsensical_success(server: OpenAIServer, client: AsyncOpenAI):
    server.script("m", [Turn(failure=Failure(200, body={"id": "x", "object": "chat.completion", "choices": []}))])
    reply = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert reply.choices == []


@pytest.mark.parametrize("failure", [Failure(drop="before"), Failure(200, body={"id": "x"}, drop="in_body")])
async def test_dropped_connections(server: OpenAIServer, client: AsyncOpenAI, failure: Failure):
    server.script("m", [Turn("done", fail_first=[failure])])
    with pytest.raises(openai.APIConnectionError):
        await client.responses.create(model="m", input="hi", store=False)
    assert (await client.responses.create(model="m", input="hi", store=False)).output_text == "done"


async def test_an_answer_waits_for_its_event_and_a_client_that_leaves_is_seen(
    server: OpenAIServer, client: AsyncOpenAI
):
    gate = asyncio.Event()
    server.script("m", [Turn("done", wait=gate)])
    waiting = asyncio.create_task(client.responses.create(model="m", input="stay", store=False))
    leaving = asyncio.create_task(client.responses.create(model="m", input="leave", store=False))
    await server.wait_for_requests(2)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    gone = server.requests_of(run="leave")[0]
    while not gone.disconnected:
        await asyncio.sleep(0.01)
    assert not waiting.done()
    gate.set()
    assert (await waiting).output_text == "done"
    assert (gone.status, server.requests_of(run="stay")[0].status) == (None, 200)


async def test_a_server_stops_while_an_answer_is_held_back():
    async with OpenAIServer() as server, AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client:
        server.script("m", [Turn("never", wait=asyncio.Event())])
        asked = asyncio.create_task(client.responses.create(model="m", input="hi", store=False))
        await server.wait_for_requests(1)
        await server.__aexit__()
        with pytest.raises(openai.APIConnectionError):
            await asked


# --- what it remembers


async def test_requests_are_recorded_as_they_came(server: OpenAIServer):
    body = b'{"model": "m",  "store": false, "input": "na\xc3\xafve", "metadata": {"ticket": "T-1"}}'
    assert (await post(server, RESPONSES, body))[0] == 200
    (request,) = server.requests
    assert (request.path, request.body, request.json["input"]) == ("/v1/responses", body, "naïve")
    assert (request.headers["authorization"], request.status, request.nth) == ("Bearer test", 200, 0)
    assert server.requests_of(run="T-1") == server.requests_of("m", "naïve") == [request]
    assert server.requests_of(run="other") == server.requests_of("other") == []


async def test_turns_are_counted_by_what_the_model_wrote(server: OpenAIServer):
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "a", "output": ""}
    said = {"role": "assistant", "content": "Hm."}
    # reasoning, text and calls of one turn, with the results of two calls after them
    first = [USER, said, call, {**call, "call_id": "b"}, output, {**output, "call_id": "b"}]
    for items, text in [([USER], "first"), (first, "second"), ([*first, said, USER], "third")]:
        status, reply = await post(server, RESPONSES, {"model": "m", "store": False, "input": items})
        assert (status, reply["output"][0]["content"][0]["text"]) == (200, text)


async def test_a_refusal_is_recorded_with_the_request(server: OpenAIServer):
    status, reply = await post(server, CHAT, {"model": "m", "messages": []})
    assert status == 400
    assert reply == {
        "error": {
            "message": IsStr(regex="Invalid 'messages': empty array.*"),
            "type": "invalid_request_error",
            "param": "messages",
            "code": "empty_array",
        }
    }
    assert [refusal.param for refusal in server.refusals] == ["messages"]
    assert server.requests[0].status == 400


# --- what it refuses: one row each


def chat(*messages: object, **more: object) -> dict[str, object]:
    return {"model": "m", "messages": [USER, *messages], **more}


def called(*ids: str, **more: object) -> dict[str, object]:
    function = {"name": "f", "arguments": "{}", **more}
    return {"role": "assistant", "tool_calls": [{"id": i, "type": "function", "function": function} for i in ids]}


def result(call_id: str, content: object = "ok") -> dict[str, object]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def function(name: object = "f", parameters: object = OBJECT, **more: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def tools(*declared: object, **more: object) -> dict[str, object]:
    return chat(tools=list(declared), **more)


def schema(more: dict[str, object], strict: bool = False) -> dict[str, object]:
    return tools(function(parameters={**OBJECT, **more}, strict=strict))


def prop(inner: object, strict: bool = False) -> dict[str, object]:
    return schema({"properties": {"q": inner}}, strict)


def answer(**more: object) -> dict[str, object]:
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": OBJECT, **more}})


CHAT_REFUSALS: dict[str, tuple[object, str]] = {
    "not UTF-8": (b'{"model": "\xff"}', "could not parse the JSON body"),
    "a surrogate in UTF-8": ('{"model": "\ud800"}'.encode("utf-8", "surrogatepass"), "could not parse"),
    "an escaped lone surrogate": (b'{"model": "\\ud800"}', "could not parse the JSON body"),
    "NaN": (b'{"model": "m", "messages": [], "temperature": NaN}', "could not parse the JSON body"),
    "no object": ([], "could not parse the JSON body"),
    "deep nesting": (b"[" * 100_000, "could not parse the JSON body"),
    "no model": ({"messages": [USER]}, "you must provide a model parameter"),
    "empty model": ({"model": "", "messages": [USER]}, "you must provide a model parameter"),
    "no messages": ({"model": "m"}, "Missing required parameter: 'messages'"),
    "empty messages": ({"model": "m", "messages": []}, "Invalid 'messages': empty array"),
    "messages null": ({"model": "m", "messages": None}, "Invalid type for 'messages'"),
    "unknown field": (chat(max_steps=3), "Unknown parameter: 'max_steps'"),
    "unknown field of a message": (chat({**USER, "error": None}), r"Unknown parameter: 'messages[1].error'"),
    "field of another role": (chat({**USER, "tool_call_id": "a"}), "Unknown parameter: 'messages[1].tool_call_id'"),
    "unknown field of a call": (
        chat({**called("a"), "tool_calls": [{**called("a")["tool_calls"][0], "index": 0}]}, result("a")),  # type: ignore[index]
        "Unknown parameter: 'messages[1].tool_calls[0].index'",
    ),
    "unknown role": (chat({"role": "critic", "content": "no"}), "Invalid value: 'critic'"),
    "no role": (chat({"content": "no"}), "Missing required parameter: 'messages[1].role'"),
    "user content null": (chat({"role": "user", "content": None}), "Invalid type for 'messages[1].content'"),
    "user content a number": (chat({"role": "user", "content": 7}), "Invalid type for 'messages[1].content'"),
    "user content without parts": (chat({"role": "user", "content": []}), "Invalid 'messages[1].content': empty"),
    "bad part": (chat({"role": "user", "content": [{"type": "output_text", "text": ""}]}), "Invalid value: 'output_t"),
    "system content null": (chat({"role": "system", "content": None}), "Invalid type for 'messages[1].content'"),
    "silent assistant": (chat({"role": "assistant", "content": None}), "Invalid value for 'content'"),
    "empty calls": (chat({"role": "assistant", "tool_calls": []}), "Invalid 'messages[1].tool_calls': empty array"),
    "calls null": (chat({"role": "assistant", "content": "a", "tool_calls": None}), "Invalid type for 'messages[1].to"),
    "no result": (chat(called("a")), "did not have response messages: a"),
    "one result missing": (chat(called("a", "b"), result("a"), USER), "did not have response messages: b"),
    "result too late": (chat(called("a"), USER, result("a")), "must be followed by tool messages"),
    "result without a call": (chat(result("a")), "must be a response to a preceeding message with 'tool_calls'"),
    "result of an older call": (chat(called("a"), result("a"), USER, result("a")), "must be a response to a prec"),
    "result twice": (chat(called("a"), result("a"), result("a")), "must be a response to a preceeding message"),
    "result null": (chat(called("a"), result("a", None)), "Invalid type for 'messages[2].content'"),
    "result an object": (chat(called("a"), result("a", {"x": 1})), "Invalid type for 'messages[2].content'"),
    "id twice in a message": (chat(called("a", "a"), result("a"), result("a")), "'a' is used twice"),
    "id twice in a conversation": (chat(called("a"), result("a"), called("a"), result("a")), "'a' is used twice"),
    "empty id": (chat(called(""), result("")), "Invalid 'messages[1].tool_calls[0].id': empty string"),
    "long id": (chat(called("a" * 41), result("a" * 41)), "maximum length 40, but got a string with length 41"),
    "illegal id": (chat(called("a b"), result("a b")), "Invalid 'messages[1].tool_calls[0].id': string does not match"),
    "illegal echoed name": (chat(called("a", name="a.b"), result("a")), "'messages[1].tool_calls[0].function.name'"),
    "long echoed name": (chat(called("a", name="n" * 65), result("a")), "maximum length 64"),
    "arguments an object": (chat(called("a", arguments={}), result("a")), "function.arguments': expected a string"),
    "arguments broken": (chat(called("a", arguments="{"), result("a")), "expected the text of a JSON object"),
    "arguments empty": (chat(called("a", arguments=""), result("a")), "expected the text of a JSON object"),
    "arguments a list": (chat(called("a", arguments="[]"), result("a")), "expected the text of a JSON object"),
    "arguments with NaN": (
        chat(called("a", arguments='{"a": NaN}'), result("a")),
        "expected the text of a JSON object",
    ),
    "no tools": (tools(), "Invalid 'tools': empty array"),
    "choice without tools": (chat(tool_choice="auto"), "'tool_choice' is only allowed when 'tools'"),
    "parallel without tools": (chat(parallel_tool_calls=True), "'parallel_tool_calls' is only allowed when 'tools'"),
    "tool twice": (tools(function(), function()), "the tool 'f' is declared twice"),
    "illegal tool name": (tools(function("a.b")), "Invalid 'tools[0].function.name'"),
    "long tool name": (tools(function("n" * 65)), "maximum length 64"),
    "unknown field of a tool": (tools(function(timeout=3)), "Unknown parameter: 'tools[0].function.timeout'"),
    "tool of the other endpoint": (tools({"type": "function", "name": "f"}), "Unknown parameter: 'tools[0].name'"),
    "undeclared choice": (
        tools(function(), tool_choice={"type": "function", "function": {"name": "g"}}),
        "Tool choice 'g' not found",
    ),
    "unknown choice": (tools(function(), tool_choice="any"), "Invalid value: 'any'"),
    "schema not of an object": (tools(function(parameters={"type": "string"})), "got 'type: \"string\"'"),
    "schema without a type": (tools(function(parameters={})), "got 'type: \"None\"'"),
    "schema a choice at the top": (schema({"anyOf": [OBJECT]}), "not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not'"),
    "schema with an unknown type": (prop({"type": "text"}), "'text' is not valid under any"),
    "schema with a bad property": (prop("string"), "'string' is not of type 'object', 'boolean'"),
    "schema with bad required": (schema({"required": "q"}), "'required' must be an array of unique strings"),
    "schema with an empty enum": (prop({"enum": []}), "'enum' must be a non-empty array"),
    "schema with an empty choice": (prop({"anyOf": []}), "'anyOf' must be a non-empty array"),
    "schema with a bad pattern": (prop({"type": "string", "pattern": "("}), "is not a 'regex'"),
    "schema with a bad number": (prop({"type": "integer", "minimum": "1"}), "'minimum' must be a number"),
    "schema with a bad count": (prop({"type": "array", "items": {}, "maxItems": -1}), "'maxItems' must be a non-neg"),
    "schema with a bad text": (prop({"description": 7}), "'description' must be a string"),
    "schema array without items": (prop({"type": "array"}), "array schema missing items"),
    "schema with a dangling reference": (prop({"$ref": "#/$defs/none"}), "reference can only point to definitions"),
    "schema with a reference elsewhere": (prop({"$ref": "https://x.y/z"}), "reference can only point to definitions"),
    "strict without required": (schema({"required": []}, True), "Missing 'q'"),
    "strict with an unknown required": (schema({"required": ["q", "r"]}, True), "Extra required key 'r'"),
    "strict and open": (schema({"additionalProperties": True}, True), "'additionalProperties' is required to be"),
    "strict and open inside": (prop({"type": "object", "properties": {}}, True), "'additionalProperties' is requi"),
    "strict with a default": (prop({"type": "string", "default": ""}, True), "'default' is not permitted"),
    "strict with allOf": (prop({"allOf": [{"type": "string"}]}, True), "'allOf' is not permitted"),
    "strict without a type": (prop({"enum": ["a"]}, True), "schema must have a 'type' key"),
    "strict with an unknown format": (prop({"type": "string", "format": "uri"}, True), "'uri' is not a valid format"),
    "strict with words beside a reference": (
        schema({"properties": {"q": {"$ref": "#", "description": "d"}}}, True),
        "$ref cannot have keywords",
    ),
    "strict without a schema": (tools(function(strict=True, parameters=None)), "Invalid type for 'tools[0].function.p"),
    "answer without a schema": (
        chat(response_format={"type": "json_schema", "json_schema": {"name": "a"}}),
        "Missing required parameter: 'response_format.json_schema.schema'",
    ),
    "answer without a name": (
        chat(response_format={"type": "json_schema", "json_schema": {"schema": OBJECT}}),
        "Missing required parameter: 'response_format.json_schema.name'",
    ),
    "answer of the other endpoint": (
        chat(response_format={"type": "json_schema", "name": "a", "schema": OBJECT}),
        "Unknown parameter: 'response_format.name'",
    ),
    "answer with an illegal name": (answer(name="a[b]"), "Invalid 'response_format.json_schema.name'"),
    "answer not of an object": (answer(schema={"type": "array", "items": {}}), "got 'type: \"array\"'"),
    "answer strict and open": (answer(schema={**OBJECT, "additionalProperties": {}}, strict=True), "response_format"),
    "answer of an unknown kind": (chat(response_format={"type": "yaml"}), "Invalid value: 'yaml'"),
    "JSON that nobody spoke of": (chat(response_format={"type": "json_object"}), "must contain the word 'json'"),
    "temperature too high": (chat(temperature=2.5), "Expected a value <= 2"),
    "temperature a text": (chat(temperature="0.5"), "Invalid type for 'temperature'"),
    "no tokens": (chat(max_completion_tokens=0), "Expected a value >= 1"),
    "several choices": (chat(n=2), "Expected a value <= 1"),
    "stream options alone": (chat(stream_options={"include_usage": True}), "only allowed when 'stream' is enabled"),
    "streaming": (chat(stream=True), "does not stream yet"),
    "metadata with a number": (chat(metadata={"a": 1}), "Invalid type for 'metadata.a'"),
    "metadata too long": (chat(metadata={"a": "x" * 513}), "maximum length 512"),
    "metadata too many": (chat(metadata={str(i): "" for i in range(17)}), "too many properties"),
    "long safety identifier": (chat(safety_identifier="x" * 129), "maximum length 128"),
    "after the script's end": (chat(*[{"role": "assistant", "content": "a"}] * 3), "has 3 turns, turn 4 was asked for"),
}


@pytest.mark.parametrize(("body", "told"), CHAT_REFUSALS.values(), ids=CHAT_REFUSALS.keys())
async def test_chat_refuses(server: OpenAIServer, body: object, told: str):
    await expect_refusal(server, CHAT, body, told)


def responses(*items: object, **more: object) -> dict[str, object]:
    return {"model": "m", "store": False, "input": [USER, *items], **more}


def call(call_id: object = "a", **more: object) -> dict[str, object]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **more}


def output(call_id: object = "a", **more: object) -> dict[str, object]:
    return {"type": "function_call_output", "call_id": call_id, "output": "ok", **more}


def thought(**more: object) -> dict[str, object]:
    return {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA", **more}


def said(*parts: object, **more: object) -> dict[str, object]:
    return {"type": "message", "role": "assistant", "content": list(parts), **more}


TEXT = {"type": "output_text", "text": "Hm.", "annotations": []}
TOOL = {"type": "function", "name": "f", "parameters": OBJECT, "strict": True}

RESPONSES_REFUSALS: dict[str, tuple[object, str]] = {
    "no model": ({"input": "hi", "store": False}, "you must provide a model parameter"),
    "no input": ({"model": "m", "store": False}, "Missing required parameter: 'input'"),
    "empty input": ({"model": "m", "store": False, "input": []}, "Invalid 'input': empty array"),
    "empty text": ({"model": "m", "store": False, "input": ""}, "Invalid 'input': empty string"),
    "input an object": ({"model": "m", "store": False, "input": USER}, "Invalid type for 'input'"),
    "stored": (responses(store=True), "Invalid 'store'"),
    "stored by default": ({"model": "m", "input": "hi"}, "Invalid 'store'"),
    "previous response": (responses(previous_response_id="resp_1"), "'previous_response_id' cannot be used"),
    "conversation": (responses(conversation="conv_1"), "'conversation' cannot be used"),
    "unknown field": (responses(messages=[]), "Unknown parameter: 'messages'"),
    "unknown include": (responses(include=["all"]), "Invalid value: 'all'"),
    "unknown item": (responses({"type": "thought"}), "Invalid value: 'thought'"),
    "item reference": (responses({"type": "item_reference", "id": "rs_1"}), "Invalid value: 'item_reference'"),
    "role tool": (responses({"role": "tool", "content": ""}), "Invalid value: 'tool'"),
    "message with calls": (responses({**said(TEXT), "tool_calls": []}), "Unknown parameter: 'input[1].tool_calls'"),
    "user content null": (responses({"role": "user", "content": None}), "Invalid type for 'input[1].content'"),
    "user content without parts": (responses({"role": "user", "content": []}), "Invalid 'input[1].content': empty"),
    "user parts of an assistant": (responses({"role": "user", "content": [TEXT]}), "Invalid value: 'output_text'"),
    "assistant parts of a user": (responses(said({"type": "input_text", "text": ""})), "Invalid value: 'input_text'"),
    "assistant with an id but no status": (responses(said(TEXT, id="msg_1")), "Missing required parameter: 'input[1]"),
    "assistant with a foreign id": (
        responses(said(TEXT, id="rs_1", status="completed")),
        "Expected an ID that begins with 'msg'",
    ),
    "reasoning with its status": (
        responses(thought(status="completed"), said(TEXT)),
        "Unknown parameter: 'input[1].status'",
    ),
    "reasoning with content null": (
        responses(thought(content=None), said(TEXT)),
        "Invalid type for 'input[1].content'",
    ),
    "reasoning without its summary": (
        responses({"type": "reasoning", "id": "rs_1", "encrypted_content": "g"}, said(TEXT)),
        "Missing required parameter: 'input[1].summary'",
    ),
    "reasoning not encrypted": (responses(thought(encrypted_content=None), said(TEXT)), "Items are not persisted"),
    "reasoning with a foreign id": (responses(thought(id="x_1"), said(TEXT)), "Expected an ID that begins with 'rs'"),
    "reasoning at the end": (responses(thought()), "without its required following item"),
    "reasoning before a user": (responses(thought(), USER), "without its required following item"),
    "reasoning twice": (responses(thought(), said(TEXT), USER, thought(), said(TEXT)), "Duplicate item found"),
    "call without output": (responses(call()), "No tool output found for function call a"),
    "output without call": (responses(output()), "No tool call found for function call output with call_id a"),
    "output before call": (responses(output(), call()), "No tool call found for function call output"),
    "output twice": (responses(call(), output(), output()), "Duplicate tool output found for function call a"),
    "call id twice": (responses(call(), output(), call(), output()), "'a' is used twice"),
    "call id null": (responses(call(), output(None)), "Missing required parameter: 'input[2].call_id'"),
    "call id missing": (responses({**call(None)}, output()), "Invalid type for 'input[1].call_id'"),
    "long call id": (responses(call("a" * 65), output("a" * 65)), "maximum length 64"),
    "illegal call id": (responses(call("a b"), output("a b")), "Invalid 'input[1].call_id'"),
    "call id in place of an id": (responses(call(id="call_1"), output()), "Expected an ID that begins with 'fc'"),
    "null where no null is": (responses(call(namespace=None), output()), "Invalid type for 'input[1].namespace'"),
    "field of the SDK's own": (responses(call(parsed_arguments={}), output()), "Unknown parameter: 'input[1].parsed"),
    "illegal echoed name": (responses(call(name="a.b"), output()), "Invalid 'input[1].name'"),
    "arguments broken": (responses(call(arguments="{"), output()), "expected the text of a JSON object"),
    "output null": (responses(call(), output(output=None)), "Invalid type for 'input[2].output'"),
    "output an object": (responses(call(), output(output={})), "Invalid type for 'input[2].output'"),
    "output with an error": (responses(call(), output(error=None)), "Unknown parameter: 'input[2].error'"),
    "tool of the other endpoint": (responses(tools=[function()]), "Unknown parameter: 'tools[0].function'"),
    "tool without strict": (
        responses(tools=[{"type": "function", "name": "f", "parameters": OBJECT}]),
        "Missing required parameter: 'tools[0].strict'",
    ),
    "tool twice": (responses(tools=[TOOL, TOOL]), "the tool 'f' is declared twice"),
    "strict tool without a schema": (responses(tools=[{**TOOL, "parameters": None}]), "strict mode needs one"),
    "strict and open": (responses(tools=[{**TOOL, "parameters": {"type": "object"}}]), "'additionalProperties' is req"),
    "undeclared choice": (
        responses(tools=[TOOL], tool_choice={"type": "function", "name": "g"}),
        "Tool choice 'g' not found",
    ),
    "undeclared choice among several": (
        responses(tools=[TOOL], tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"name": "g"}]}),
        "Tool choice 'g' not found",
    ),
    "a choice required of none": (responses(tool_choice="required"), "must be specified with 'tools'"),
    "answer of the other endpoint": (
        responses(text={"format": {"type": "json_schema", "json_schema": {"name": "a", "schema": OBJECT}}}),
        "Unknown parameter: 'text.format.json_schema'",
    ),
    "answer strict and open": (
        responses(text={"format": {"type": "json_schema", "name": "a", "strict": True, "schema": {"type": "object"}}}),
        "'additionalProperties' is required",
    ),
    "JSON that nobody spoke of": (responses(text={"format": {"type": "json_object"}}), "must contain the word 'json'"),
    "too few tokens": (responses(max_output_tokens=15), "Expected a value >= 16"),
    "unknown effort": (responses(reasoning={"effort": "huge"}), "Invalid value: 'huge'"),
}


@pytest.mark.parametrize(("body", "told"), RESPONSES_REFUSALS.values(), ids=RESPONSES_REFUSALS.keys())
async def test_responses_refuses(server: OpenAIServer, body: object, told: str):
    await expect_refusal(server, RESPONSES, body, told)


async def test_reasoning_must_be_asked_for(server: OpenAIServer):
    server.script("m", [Turn("Hm.", reasoning=[Reasoning()])])
    await expect_refusal(server, RESPONSES, responses(), "'reasoning.encrypted_content' must be asked for")


async def expect_refusal(server: OpenAIServer, path: str, body: object, told: str) -> None:
    status, reply = await post(server, path, body)
    assert told in reply["error"]["message"]
    assert reply["error"] == {
        "message": IsStr(),
        "type": "invalid_request_error",
        "param": reply["error"]["param"],
        "code": reply["error"]["code"],
    }
    assert status in (400, 404)
    assert len(server.refusals) == 1


@pytest.mark.parametrize("key", ["", "Bearer", "Bearer ", "Basic abc"])
async def test_a_key_is_needed(server: OpenAIServer, key: str):
    status, reply = await post(server, CHAT, chat(), key)
    assert (status, reply["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("path", "body", "code"), [(CHAT, chat(model="other"), "model_not_found"), ("/embeddings", {}, None)]
)
async def test_what_is_not_there(server: OpenAIServer, path: str, body: object, code: str | None):
    status, reply = await post(server, path, body)
    assert (status, reply["error"]["code"]) == (404, code)


# --- what it takes: rules that refuse too much would be no better

ROOTED = {
    **OBJECT,
    "properties": {"q": {"$ref": "#/$defs/Node"}},
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
            "required": ["next"],
            "additionalProperties": False,
        }
    },
}
TAKEN: dict[str, tuple[str, object]] = {
    "chat": (
        CHAT,
        chat({"role": "system", "content": ""}, {"role": "user", "content": [{"type": "text", "text": "a"}]}),
    ),
    "chat, calls": (
        CHAT,
        chat(called("a", "b"), result("b"), result("a", [{"type": "text", "text": "x"}]), tools=[function()]),
    ),
    "chat, calls with null content": (CHAT, chat({**called("a"), "content": None}, result("a"))),
    "chat, refusal": (CHAT, chat({"role": "assistant", "content": None, "refusal": "no"})),
    "chat, open schema": (CHAT, prop({"description": "anything", "default": None, "examples": ["x"]})),
    "chat, recursive strict schema": (CHAT, tools(function(parameters=ROOTED, strict=True), tool_choice="required")),
    "chat, tool without parameters": (CHAT, tools({"type": "function", "function": {"name": "f"}})),
    "chat, settings": (CHAT, chat(temperature=0, seed=1, stop=["x"], user="u", metadata={"a": "b"}, stream=False)),
    "chat, answer": (CHAT, answer(strict=True)),
    "chat, JSON": (CHAT, chat({"role": "user", "content": "in JSON"}, response_format={"type": "json_object"})),
    "responses, text": (RESPONSES, responses(instructions="Be kind.", tools=[], parallel_tool_calls=True)),
    "responses, parts": (RESPONSES, responses({"role": "user", "content": [{"type": "input_text", "text": "a"}]})),
    "responses, reasoning and calls": (
        RESPONSES,
        responses(thought(content=[{"type": "reasoning_text", "text": "t"}]), call(id="fc_1"), output(), tools=[TOOL]),
    ),
    "responses, two calls": (RESPONSES, responses(call("a"), call("b", status="completed"), output("b"), output("a"))),
    "responses, open tool": (RESPONSES, responses(tools=[{**TOOL, "strict": False, "parameters": {"type": "object"}}])),
    "responses, said": (RESPONSES, responses(said(TEXT, id="msg_1", status="completed"), USER)),
    "responses, said without an id": (RESPONSES, responses(said(TEXT), said({"type": "refusal", "refusal": "no"}))),
    "responses, said in short": (RESPONSES, responses({"role": "assistant", "content": "Hm."})),
    "responses, answer": (
        RESPONSES,
        responses(text={"format": {"type": "json_schema", "name": "a", "strict": True, "schema": OBJECT}}),
    ),
    "responses, settings": (
        RESPONSES,
        responses(reasoning={"effort": "low"}, include=["reasoning.encrypted_content"], max_output_tokens=16),
    ),
}


@pytest.mark.parametrize(("path", "body"), TAKEN.values(), ids=TAKEN.keys())
async def test_takes(server: OpenAIServer, path: str, body: object):
    status, reply = await post(server, path, body)
    assert (status, server.refusals) == (200, []), reply
