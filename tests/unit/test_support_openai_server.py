"""The scripted OpenAI server with the real client: its answers, its refusals, and its records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from dirty_equals import IsPartialDict, IsStr
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem

from tests.support.openai_requests import CHAT, RESPONSES, USER, chat, post
from tests.support.openai_server import Call, Failure, OpenAIServer, Reasoning, Turn, Usage


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer() as running:
        running.script("m", [Turn("first"), Turn("second"), Turn("third")])
        yield running


@pytest.fixture
async def client(server: OpenAIServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.base_url, api_key="test", max_retries=0) as connected:
        yield connected


# --- answers


async def test_chat_replies_are_full_typed_objects(server: OpenAIServer, client: AsyncOpenAI):
    usage = Usage(input_tokens=20, output_tokens=7, cached_input_tokens=8, reasoning_tokens=3)
    calls: list[Call] = [("search", '{"q": "x"}'), ("no such tool!", "{broken", "same id")]
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
    # validated here, because the client builds its objects without validation
    ChatCompletion.model_validate(reply.model_dump(), strict=True)

    assistant: Any = choice.message.model_dump(include={"role", "content"})
    again = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}, assistant, {"role": "user", "content": "and?"}]
    )
    assert (again.choices[0].message.content, again.model) == ("Found.", "m-2026-01-01")
    assert again._request_id is not None
    assert server.refusals == []


async def test_responses_replies_are_full_typed_objects_that_can_be_sent_back(
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

    # the client's reasoning item has fields that are not allowed in an input
    back[1] = thought.model_dump(exclude_none=True)
    with pytest.raises(openai.BadRequestError, match=r"Unknown parameter: 'input\[1\]\.status'"):
        await client.responses.create(**asked, input=back)


@pytest.mark.parametrize(
    ("turn", "finish_reason", "ending"),
    [
        (Turn("cut o", finish_reason="length"), "length", ("incomplete", "max_output_tokens")),
        (Turn(finish_reason="content_filter"), "content_filter", ("incomplete", "content_filter")),
        (Turn(refusal="I will not."), "stop", ("completed", None)),
        (Turn(calls=[("f", "{")], finish_reason="length"), "length", ("incomplete", "max_output_tokens")),
        (Turn("lone \ud800 surrogate", usage=None), "stop", ("completed", None)),
    ],
)
async def test_each_finish_reason_of_a_turn_is_returned_by_both_apis(
    server: OpenAIServer, client: AsyncOpenAI, turn: Turn, finish_reason: str, ending: tuple[str, str | None]
):
    server.script("m", [turn])
    completion = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert completion.choices[0].finish_reason == finish_reason
    assert completion.choices[0].message.content == turn.text
    assert completion.choices[0].message.refusal == turn.refusal
    response = await client.responses.create(model="m", input="hi", store=False)
    reason = response.incomplete_details.reason if response.incomplete_details else None
    assert (response.status, reason) == ending
    assert response.output_text == (turn.text or "")
    if turn.refusal:
        assert isinstance(response.output[0], ResponseOutputMessage)
        assert response.output[0].content[0].model_dump() == {"type": "refusal", "refusal": "I will not."}


async def test_a_script_may_be_a_function(server: OpenAIServer, client: AsyncOpenAI):
    server.script("m", lambda request, nth: Turn(f"{nth}: {request['messages'][-1]['content']}"))
    messages: list[Any] = [USER, {"role": "assistant", "content": "Which?"}, {"role": "user", "content": "this"}]
    reply = await client.chat.completions.create(model="m", messages=messages)
    assert reply.choices[0].message.content == "1: this"


async def test_scripted_failures_are_counted_for_each_run(server: OpenAIServer, client: AsyncOpenAI):
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
    assert server.refusals == []  # a scripted failure is not a refusal


async def test_a_scripted_failure_is_returned_at_every_attempt(server: OpenAIServer, client: AsyncOpenAI):
    told = {"error": {"message": "too long", "type": "invalid_request_error", "param": "input", "code": "too_long"}}
    server.script("m", [Turn(failure=Failure(400, body=told))])
    for _ in range(2):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="m", input="hi", store=False)
        assert (refused.value.code, refused.value.param) == ("too_long", "input")


async def test_a_scripted_body_is_returned_even_if_invalid(server: OpenAIServer, client: AsyncOpenAI):
    server.script("m", [Turn(failure=Failure(200, body={"id": "x", "object": "chat.completion", "choices": []}))])
    reply = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert reply.choices == []


@pytest.mark.parametrize("failure", [Failure(drop="before"), Failure(200, body={"id": "x"}, drop="in_body")])
async def test_a_scripted_drop_closes_the_connection(server: OpenAIServer, client: AsyncOpenAI, failure: Failure):
    server.script("m", [Turn("done", fail_first=[failure])])
    with pytest.raises(openai.APIConnectionError):
        await client.responses.create(model="m", input="hi", store=False)
    assert (await client.responses.create(model="m", input="hi", store=False)).output_text == "done"


async def test_an_answer_waits_for_its_event_and_a_disconnected_client_is_noticed(
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
    await gone.done.wait()
    assert gone.disconnected
    assert not waiting.done()
    gate.set()
    assert (await waiting).output_text == "done"
    assert (gone.status, server.requests_of(run="stay")[0].status) == (None, 200)


async def test_the_server_stops_while_an_answer_waits():
    async with OpenAIServer() as server, AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client:
        server.script("m", [Turn("never", wait=asyncio.Event())])
        asked = asyncio.create_task(client.responses.create(model="m", input="hi", store=False))
        await server.wait_for_requests(1)
        await server.__aexit__()
        with pytest.raises(openai.APIConnectionError):
            await asked


# --- records


async def test_requests_are_recorded_unchanged(server: OpenAIServer):
    body = b'{"model": "m",  "store": false, "input": "na\xc3\xafve", "metadata": {"ticket": "T-1"}}'
    assert (await post(server, RESPONSES, body))[0] == 200
    (request,) = server.requests
    assert (request.path, request.body, request.json["input"]) == ("/v1/responses", body, "naïve")
    assert (request.headers["authorization"], request.status, request.nth) == ("Bearer test", 200, 0)
    assert server.requests_of(run="T-1") == server.requests_of("m", "naïve") == [request]
    assert server.requests_of(run="other") == server.requests_of("other") == []


async def test_turns_are_counted_by_the_assistant_turns_of_a_request(server: OpenAIServer):
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


async def test_a_script_that_raises_is_returned_as_a_permanent_error(server: OpenAIServer):
    server.script("m", lambda request, nth: Turn(request["no such field"]))
    status, reply = await post(server, CHAT, chat())
    assert (status, reply["error"]["code"]) == (400, "script_raised")


@pytest.mark.parametrize("key", ["", "Bearer", "Bearer ", "Basic abc"])
async def test_requests_without_a_valid_key_get_401(server: OpenAIServer, key: str):
    status, reply = await post(server, CHAT, chat(), key)
    assert (status, reply["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("path", "body", "code"), [(CHAT, chat(model="other"), "model_not_found"), ("/embeddings", {}, None)]
)
async def test_unknown_paths_and_models_get_404(server: OpenAIServer, path: str, body: object, code: str | None):
    status, reply = await post(server, path, body)
    assert (status, reply["error"]["code"]) == (404, code)
