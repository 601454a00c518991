"""`/v1` with the unmodified `openai` SDK: responses, chat completions and models, on real sockets and real workers."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from mulligan.client import read_agents
from mulligan.serve.openai_api import responses
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.http_server import Door, http_server
from tests.support.lab import Lab
from tests.support.openai_door_agents import LONG, MODEL, SCRIPTS, Label, scripted
from tests.support.openai_stream import Break
from tests.support.openai_turn import Turn

TOKENS = "ada:token-of-ada,bob:token-of-bob:seller"


@dataclass
class Served:
    """Two replicas of the server, and a client of OpenAI for each."""

    lab: Lab
    door: Door
    client: Any
    other: Any

    def script(self, *turns: Turn) -> str:
        """A prompt to which the model answers by these turns."""
        prompt = f"Prompt {uuid.uuid4().hex[:8]}."
        self.lab.model.script(MODEL, scripted({**SCRIPTS, prompt: turns}))
        return prompt


def sdk(door: Door, token: str = "token-of-ada") -> Any:
    return AsyncOpenAI(base_url=f"{door.url}/v1", api_key=token, max_retries=0)


@pytest.fixture(scope="module")
async def served(lab: Lab) -> AsyncIterator[Served]:
    queue = f"openai-{uuid.uuid4().hex[:6]}"
    lab.model.script(MODEL, scripted(SCRIPTS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULLIGAN_LIVE_TEXT_SECONDS", "0.1")
        async with (
            running_worker(lab.client, load(["tests.support.openai_door_agents"]), lab.telemetry, queue),
            http_server(lab.client, task_queue=queue, tokens=TOKENS) as door,
            http_server(lab.client, task_queue=queue, tokens=TOKENS) as other,
            sdk(door) as client,
            sdk(other) as other_client,
        ):
            yield Served(lab, door, client, other_client)


async def streamed(client: Any, response_id: str, after: int | None = None) -> list[dict[str, Any]]:
    """The events of a response, from the first one or after a sequence number."""
    options: dict[str, Any] = {} if after is None else {"starting_after": after}
    stream = await client.responses.retrieve(response_id, stream=True, **options)
    return [event.model_dump(warnings=False) async for event in stream]


async def test_a_rejected_answer_is_not_in_the_output(served: Served) -> None:
    """So the client's own typed reading works: it parses each text of the output."""
    parsed = await served.client.responses.parse(model="labeller", input="Label it at last.", text_format=Label)
    assert (parsed.status, parsed.output_parsed) == ("completed", Label(name="blue"))
    assert "It is blue." not in parsed.output_text


async def test_a_response_has_openais_events_and_each_number_resumes_right_after_its_event(served: Served) -> None:
    """On another replica, too (after every event: test_door_rules.py). The calls of the run are items that need no client."""
    async with served.client.responses.stream(model="seller", input="Look.", metadata={"order": "7"}) as stream:
        types = [event.type async for event in stream]
        final = await stream.get_final_response()
    message = ["response.output_item.added", "response.content_part.added", "response.output_text.delta"]
    message += ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    added = ["response.output_item.added", "response.mcp_call.in_progress"]
    arguments = ["response.mcp_call_arguments.delta", "response.mcp_call_arguments.done"]
    ended = ["response.mcp_call.completed", "response.output_item.done"]
    failed = ["response.mcp_call.failed", "response.output_item.done"]
    begun = ["response.created", "response.in_progress", *message, *added]
    assert types[: len(begun)] == begun
    assert sorted(types[len(begun) : -7]) == sorted([*arguments, *ended, *added, *arguments, *failed])
    assert types[-7:] == [*message, "response.completed"]
    assert (final.output_text, final.status, final.model) == ("Let me look.It is order 7.", "completed", "seller")
    assert final.metadata == {"order": "7"}
    assert final.usage is not None
    assert (final.usage.input_tokens, final.usage.output_tokens, final.usage.total_tokens) == (20, 10, 30)
    [first, ran, unknown, last] = [item.to_dict() for item in final.output]
    assert [(each["type"], each["phase"]) for each in (first, last)] == [
        ("message", "commentary"),
        ("message", "final_answer"),
    ]
    assert (ran["type"], ran["name"], ran["status"], ran["error"]) == ("mcp_call", "search_orders", "completed", None)
    assert json.loads(ran["arguments"]) == {"customer": "Ada"}
    assert json.loads(ran["output"])[0]["id"] == 7
    assert [repair["by"] for repair in ran["mulligan"]["repairs"]] == ["json:single_quotes+trailing_commas"]
    assert (unknown["status"], unknown["output"], unknown["mulligan"]["error_kind"]) == ("failed", None, "unknown_tool")
    assert "search_orders" in unknown["error"]["content"][0]["text"]

    events = await streamed(served.client, final.id)
    assert [event["type"] for event in events] == types
    assert (await served.other.responses.retrieve(final.id)).model_dump(warnings=False) == events[-1]["response"]
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] < 2**53
    for place in (0, len(numbers) // 2, len(numbers) - 2):
        assert await streamed(served.other, final.id, numbers[place]) == events[place + 1 :]


async def test_text_continues_in_the_middle_on_another_replica(served: Served) -> None:
    """The client has gone in the middle of a word; what it gets later is the rest, once."""
    gate = asyncio.Event()
    prompt = served.script(Turn(LONG, gates={4: gate}))
    text, last = "", None
    async with await served.client.responses.create(model="seller", input=prompt, stream=True) as stream:
        async for event in stream:
            if event.type == "response.created":
                response_id = event.response.id
            if event.type == "response.output_text.delta":
                text, last = text + event.delta, event.sequence_number
                break
    assert text
    assert len(text) < len(LONG)
    running = await served.other.responses.retrieve(response_id)
    assert (running.status, running.usage) == ("in_progress", None)
    resumed = asyncio.create_task(streamed(served.other, response_id, last))
    await asyncio.sleep(0.3)
    gate.set()
    events = await resumed
    text += "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == LONG
    assert [event["type"] for event in events if event["type"].endswith(".added")] == []
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == LONG


async def test_void_text_closes_its_item_as_incomplete(served: Served) -> None:
    """The final response has only what is valid."""
    gate, second = asyncio.Event(), asyncio.Event()
    broken = Turn(LONG, break_first=[Break(after=4, wait=gate, drop=True), Break(after=6, wait=second)])
    async with await served.client.responses.create(model="seller", input=served.script(broken), stream=True) as stream:
        events = []
        async for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta":
                gate.set()
            if event.type == "response.output_item.done":
                second.set()
    done = [event.item.to_dict() for event in events if event.type == "response.output_item.done"]
    assert [item["status"] for item in done] == ["incomplete", "completed"]
    assert LONG.startswith(done[0]["content"][0]["text"])
    assert done[1]["content"][0]["text"] == LONG
    assert len({item["id"] for item in done}) == 2
    assert events[-1].response.output_text == LONG
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def test_a_background_response_is_polled_and_cancelled(served: Served) -> None:
    """Cancelling again returns the same response; so does the same Idempotency-Key."""
    prompt = served.script(Turn("x", wait=asyncio.Event()))
    key = {"Idempotency-Key": uuid.uuid4().hex}
    create = served.client.responses.create
    created = await create(model="seller", input=prompt, background=True, extra_headers=key)
    assert created.status in ("queued", "in_progress")
    assert created.background is True
    again = await create(model="seller", input=prompt, background=True, extra_headers=key)
    assert again.id == created.id
    with pytest.raises(openai.UnprocessableEntityError) as conflict:
        await create(model="seller", input="Other.", background=True, extra_headers=key)
    assert conflict.value.code == "key_reused"
    stream = asyncio.create_task(streamed(served.client, created.id))
    cancelled = await served.client.responses.cancel(created.id)
    assert cancelled.status == "cancelled"
    assert (await served.other.responses.cancel(created.id)).status == "cancelled"
    assert (await stream)[-1]["type"] == "response.incomplete"


async def test_previous_response_id_continues_the_conversation(served: Served) -> None:
    """With the calls and texts of the earlier run. Not while that is in progress, and not with another agent."""
    first = await served.client.responses.create(model="seller", input="Say hello.")
    assert first.output_text == "Hello."
    continued: dict[str, Any] = {"model": "seller", "input": "Again.", "previous_response_id": first.id}
    key = {"Idempotency-Key": uuid.uuid4().hex}
    second = await served.other.responses.create(**continued, extra_headers=key)
    assert (second.output_text, second.previous_response_id) == ("Hello again.", first.id)
    assert (await served.client.responses.create(**continued, extra_headers=key)).id == second.id
    sent = served.lab.model.requests_of(MODEL)[-1].conversation
    assert [(each["role"], each["content"]) for each in sent if each["role"] != "system"] == [
        ("user", "Say hello."),
        ("assistant", "Hello."),
        ("user", "Again."),
    ]
    with pytest.raises(openai.BadRequestError) as refused:
        await served.client.responses.create(**{**continued, "model": "labeller"})
    assert refused.value.param == "model"
    waiting = await served.client.responses.create(model="seller", input="Ask me.", background=True)
    with pytest.raises(openai.BadRequestError) as refused:
        await served.client.responses.create(**{**continued, "previous_response_id": waiting.id})
    assert refused.value.param == "previous_response_id"
    await served.client.responses.cancel(waiting.id)


async def test_equal_requests_with_a_previous_response_are_one_response_and_others_are_branches(served: Served) -> None:
    """At once and later, on two replicas. A key of its own makes an equal request a branch, and belongs to one request."""
    prompt = served.script(Turn("One."), Turn("Two."))
    first = await served.client.responses.create(model="seller", input=prompt)

    async def go_on(client: Any = served.client, key: str = "", **fields: Any) -> Any:
        given = {"model": "seller", "input": "Next.", "previous_response_id": first.id, **fields}
        return await client.responses.create(**given, extra_headers={"Idempotency-Key": key} if key else {})

    key = uuid.uuid4().hex
    for each in ("", key):
        many = await asyncio.gather(*(go_on((served.client, served.other)[n % 2], each) for n in range(20)))
        assert {response.output_text for response in many} == {"Two."}
        assert len({response.id for response in many}) == 1
        assert (await go_on(served.other, each)).id == many[0].id
    others = [
        await go_on(input="Something else."),
        await go_on(metadata={"a": "b"}),
        await go_on(key=uuid.uuid4().hex),
        await go_on(key=key),
        await go_on(),
    ]
    assert len({response.id for response in others}) == 5
    assert [response.metadata for response in others] == [{}, {"a": "b"}, {}, {}, {}]
    for changed in ({"input": "Something else."}, {"metadata": {"a": "b"}}, {"previous_response_id": others[0].id}):
        with pytest.raises(openai.UnprocessableEntityError) as refused:
            await go_on(key=key, **changed)
        assert refused.value.code == "key_reused"
    assert len(served.lab.model.requests_of(MODEL, run=prompt)) == 1 + len(others)
    said = {served.lab.model.requests_of(MODEL, run=prompt)[n].conversation[-1]["content"] for n in range(1, 6)}
    assert said == {"Next.", "Something else."}


async def test_a_waiting_call_is_an_item_that_the_client_replies_to(served: Served) -> None:
    """An approval as OpenAI's for MCP servers; a question as a function call. The response is the same one then."""
    create = served.client.responses.create
    waiting = await create(model="seller", input="Give it back.")
    [request] = waiting.output
    assert (waiting.status, request.type) == ("in_progress", "mcp_approval_request")
    assert (request.name, json.loads(request.arguments)) == ("refund", {"order": 7, "amount": {"euros": 2}})
    assert waiting.to_dict()["mulligan"]["waiting_for"][0]["call_id"] == "r"
    wrong = {"type": "mcp_approval_response", "approval_request_id": "mcpr_x", "approve": True}
    with pytest.raises(openai.BadRequestError):
        await create(model="seller", previous_response_id=waiting.id, input=[wrong])
    approved = {**wrong, "approval_request_id": request.id}
    done = await create(model="seller", previous_response_id=waiting.id, input=[approved])
    assert (done.id, done.status, done.output_text) == (waiting.id, "completed", "Given back.")
    assert [item.type for item in done.output] == ["mcp_call", "message"]
    assert done.output[0].to_dict()["approval_request_id"] == request.id

    asked = await create(model="seller", input="Ask me.")
    question = asked.output[-1]
    assert (question.type, json.loads(question.arguments)) == ("function_call", {"question": "Which?"})
    answer: Any = {"type": "function_call_output", "call_id": question.call_id, "output": "Both."}
    stream = await create(model="seller", previous_response_id=asked.id, input=[answer], stream=True)
    events = [event async for event in stream]
    final = events[-1].response
    assert (final.output_text, [item.type for item in final.output]) == ("Thank you.", ["mcp_call", "message"])
    with pytest.raises(openai.UnprocessableEntityError) as waits:
        await served.client.chat.completions.create(model="seller", messages=user("Ask me."))
    assert "waits for a person" in waits.value.message


async def test_what_sub_agents_ask_are_items_of_the_response_while_they_wait(served: Served) -> None:
    """In the response and in its stream, on each replica; one after the other is replied to."""
    create = served.client.responses.create
    waiting = await create(model="manager", input="Let it be done.")
    # An approval is announced once the tenant's rules have been asked for.
    question, request = sorted(waiting.output, key=lambda item: item.type)
    assert waiting.status == "in_progress"
    assert (request.type, request.name, request.id) == ("mcp_approval_request", "refund", f"mcpr_r@{waiting.id}/d")
    assert json.loads(request.arguments) == {"order": 7, "amount": {"euros": 2}}
    assert (question.type, json.loads(question.arguments)) == ("function_call", {"question": "Which?"})
    assert {each["call_id"] for each in waiting.to_dict()["mulligan"]["waiting_for"]} == {
        f"r@{waiting.id}/d", f"q@{waiting.id}/d",
    }  # fmt: skip
    assert (await served.other.responses.retrieve(waiting.id)).output == waiting.output

    seen: list[dict[str, Any]] = []
    async with await served.other.responses.retrieve(waiting.id, stream=True) as stream:
        async for event in stream:
            seen.append(event.to_dict())
            if {request.id, question.id} <= {each["item"]["id"] for each in seen if each["type"].endswith("item.done")}:
                break
    numbers = [each["sequence_number"] for each in seen]
    assert numbers == sorted(set(numbers))
    later = asyncio.create_task(streamed(served.client, waiting.id, numbers[-1]))

    foreign: Any = {"type": "mcp_approval_response", "approval_request_id": "mcpr_r@another/d", "approve": True}
    with pytest.raises(openai.BadRequestError, match="no call of this response"):
        await create(model="manager", previous_response_id=waiting.id, input=[foreign])
    approved: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    half = await create(model="manager", previous_response_id=waiting.id, input=[approved])
    assert (half.status, [each.id for each in half.output]) == ("in_progress", [question.id])
    with pytest.raises(openai.BadRequestError):
        await create(model="manager", previous_response_id=waiting.id, input=[approved])
    answer: Any = {"type": "function_call_output", "call_id": question.call_id, "output": "Both."}
    done = await create(model="manager", previous_response_id=waiting.id, input=[answer])
    assert (done.id, done.status, done.output_text) == (waiting.id, "completed", "It is done.")
    assert [each.type for each in done.output] == ["mcp_call", "message"]
    rest = await later
    assert rest[-1]["response"] == done.model_dump(warnings=False)
    assert all(each["sequence_number"] > numbers[-1] for each in rest)
    steps = (await served.door.http.get(f"/api/runs/{waiting.id}/d/steps", headers=served.door.by("ada"))).json()
    assert [each["result"]["text"] for each in steps["steps"][0]["tool_calls"]] == ["refunded 2 for order 7", "Both."]


async def test_a_run_that_fails_is_an_error_for_openais_sdk(served: Served) -> None:
    """The status of a response; of a chat completion the answer, or the last chunk. What each other end is: door_frames/."""
    chat = served.client.chat.completions.create
    failed = await served.client.responses.create(model="strict_seller", input="Fail.")
    assert (failed.status, failed.error.code) == ("failed", "server_error")
    assert "unknown_tool" in failed.error.message
    with pytest.raises(openai.UnprocessableEntityError) as error:
        await chat(model="strict_seller", messages=user("Fail."))
    assert error.value.code == "run_failed"
    assert error.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(openai.APIError, match="unknown_tool"):
        async for _ in await chat(model="strict_seller", messages=user("Fail."), stream=True):
            pass


async def test_a_chat_completion_streams_the_text_of_all_steps_and_its_usage(served: Served) -> None:
    """Without a stream, its content is the output. Earlier messages begin the conversation."""
    earlier: Any = [
        {"role": "user", "content": [{"type": "text", "text": "Say hello."}]},
        {"role": "assistant", "content": "Hello."},
    ]
    whole = await served.client.chat.completions.create(
        model="seller", messages=[*earlier, *user("Again.")], temperature=0.3
    )
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("Hello again.", "stop")
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (10, 5)
    looked = await served.client.chat.completions.create(model="seller", messages=user("Look."))
    assert looked.choices[0].message.content == "It is order 7."
    chunks = await served.client.chat.completions.create(
        model="seller", messages=user("Look."), stream=True, stream_options={"include_usage": True}
    )
    got = [chunk async for chunk in chunks]
    assert "".join(each.choices[0].delta.content or "" for each in got[:-1]) == "Let me look.\n\nIt is order 7."
    assert [each.choices[0].finish_reason for each in got[:-1] if each.choices[0].finish_reason] == ["stop"]
    assert (got[-1].choices, got[-1].usage.total_tokens) == ([], 30)
    assert len({each.id for each in got}) == 1
    assert (await served.client.responses.retrieve(got[0].id)).status == "completed"


async def test_a_run_goes_on_when_the_client_of_a_chat_has_gone(served: Served) -> None:
    gate = asyncio.Event()
    prompt = served.script(Turn("At last.", wait=gate))
    async with await served.client.chat.completions.create(
        model="seller", messages=user(prompt), stream=True
    ) as stream:
        async for chunk in stream:
            run_id = chunk.id
            break
    gate.set()
    read = await served.door.http.get(f"/api/runs/{run_id}?wait=30", headers=served.door.by("ada"))
    assert read.json()["result"]["output"] == "At last."


async def test_models_are_the_agents_that_a_token_may_use_and_responses_are_its_tenants(served: Served) -> None:
    names = [model.id async for model in served.client.models.list()]
    assert {"seller", "labeller"} <= set(names)
    async with sdk(served.door, "token-of-bob") as bob:
        assert [model.id async for model in bob.models.list()] == ["seller"]
        with pytest.raises(openai.NotFoundError) as unknown:
            await bob.responses.create(model="labeller", input="Label it.")
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        mine = await served.client.responses.create(model="seller", input="Say hello.")
        for refused in (
            bob.responses.retrieve(mine.id),
            bob.responses.retrieve(mine.id, stream=True),
            bob.responses.cancel(mine.id),
            bob.responses.create(model="seller", input="Again.", previous_response_id=mine.id),
        ):
            with pytest.raises(openai.NotFoundError) as foreign:
                await refused
            assert foreign.value.code == "run_not_found"
    async with sdk(served.door, "token-of-nobody") as nobody:
        with pytest.raises(openai.AuthenticationError) as unauthorized:
            await nobody.models.list()
        assert unauthorized.value.code == "invalid_api_key"


TEXT: Any = {"model": "seller", "input": "x"}
CHAT: Any = {"model": "seller", "messages": [{"role": "user", "content": "x"}]}
IMAGE: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
REFUSED: list[tuple[str, dict[str, Any], str | None, str]] = [
    # path, body, param, a part of the sentence
    ("responses", {**TEXT, "instructions": 7}, "instructions", "must be a text"),
    ("responses", {**TEXT, "instructions": "x" * 100_001}, "instructions", "100,001 characters"),
    ("responses", {**TEXT, "top_logprobs": 3}, "top_logprobs", "no log probabilities"),
    ("responses", {**TEXT, "conversation": 7}, "conversation", "id of a conversation"),
    ("responses", {"input": "x"}, "model", "name of an agent"),
    ("responses", {**TEXT, "model": "sellr"}, "model", "seller"),
    ("responses", {**TEXT, "input": []}, "input", "not empty"),
    ("responses", {**TEXT, "input": 7}, "input", "a text or a list"),
    ("responses", {**TEXT, "input": "  "}, "prompt", "empty"),
    ("responses", {**TEXT, "input": IMAGE}, "input[0].content[0]", "input_image"),
    ("responses", {**TEXT, "input": [{"role": "system", "content": "x"}]}, "input", "no message for the agent"),
    ("responses", {**TEXT, "input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "item_reference"),
    ("responses", {**TEXT, "input": [{"type": ["message"], "content": "x"}]}, "input[0]", "the type"),
    ("responses", {**TEXT, "input": [{"role": "user", "content": [{"type": {}}]}]}, "input[0].content[0]", "type text"),
    ("responses", {**TEXT, "stream": "yes"}, "stream", "true or false"),
    ("responses", {**TEXT, "metadata": {"a": 1}}, "metadata", "texts"),
    ("responses", {**TEXT, "previous_response_id": "resp_none"}, None, "resp_none"),
    ("chat/completions", {**CHAT, "n": 2}, "n", "one run"),
    ("chat/completions", {**CHAT, "logprobs": True}, "logprobs", "no log probabilities"),
    ("chat/completions", {**CHAT, "modalities": ["text", "audio"]}, "modalities", "answers with text"),
    ("chat/completions", {**CHAT, "messages": []}, "messages", "not empty"),
    (
        "chat/completions",
        {**CHAT, "messages": [{"role": "system", "content": "x"}]},
        "messages",
        "no message for the agent",
    ),
    ("chat/completions", {**CHAT, "messages": [{"role": "assistant", "content": "x"}]}, "messages", "user message"),
    (
        "chat/completions",
        {**CHAT, "messages": [{"role": "assistant", "content": "x", "tool_calls": 7}]},
        "messages[0].tool_calls",
        "list of calls",
    ),
    ("chat/completions", {**CHAT, "messages": [{"role": "robot"}]}, "messages[0].role", "robot"),
]


async def test_what_is_refused_gets_one_sentence_in_openais_form(served: Served) -> None:
    """Values that ask for nothing, and unknown fields, are accepted."""
    for path, body, param, sentence in REFUSED:
        answer = await served.door.http.post(f"/v1/{path}", json=body, headers=served.door.by("ada"))
        error = answer.json()["error"]
        assert answer.status_code == (404 if "sellr" in str(body) or "resp_none" in str(body) else 400), (body, error)
        assert (error["param"], error["type"]) == (param, "invalid_request_error"), (body, error)
        assert sentence in error["message"], (body, error)
    by = served.door.by("ada")
    assert (await served.door.http.post("/v1/responses", content=b"{", headers=by)).json()["error"][
        "code"
    ] == "invalid_json"
    assert (await served.door.http.get("/v1/none", headers=by)).json()["error"]["code"] == "path_not_found"
    wrong = await served.door.http.delete("/v1/models", headers=by)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "wrong_method")
    mine = await served.client.responses.create(
        model="seller", input="Say hello.", instructions="", tools=[], tool_choice="auto", temperature=0.2,
        text={"format": {"type": "text"}}, store=False, truncation="auto", extra_body={"chat_id": "7"},
    )  # fmt: skip
    after = {"stream": True, "starting_after": 2**52}
    beyond = await served.door.http.get(f"/v1/responses/{mine.id}", params=after, headers=by)
    assert (beyond.status_code, beyond.json()["error"]["param"]) == (400, "starting_after")


async def test_without_a_worker_a_response_is_accepted_and_waits(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream begins at once; who polls is told that it is not done; a cancelled one has ended."""
    monkeypatch.setattr(read_agents, "WORKER_TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr(responses, "READ_SECONDS", 1)
    async with http_server(lab.client, task_queue=f"nobody-{uuid.uuid4().hex[:6]}") as door, sdk(door) as client:
        stream = await client.responses.create(model="seller", input="Look.", stream=True)
        begun = await anext(aiter(stream))
        await stream.close()
        assert (begun.type, begun.sequence_number) == ("response.created", 0)
        polled = await client.responses.retrieve(begun.response.id)
        assert (polled.status, polled.output) == ("queued", [])


async def test_texts_that_are_not_unicode_are_refused_or_mended(served: Served) -> None:
    """JSON can spell half of a surrogate pair."""
    half = '"\\ud800"'
    for field in ("model", "input", "previous_response_id", "metadata"):
        body = {
            "model": '"seller"',
            "input": '"Say hello."',
            field: f'{{"a": {half}}}' if field == "metadata" else half,
        }
        content = "{" + ", ".join(f'"{name}": {value}' for name, value in body.items()) + ', "background": true}'
        answer = await served.door.http.post("/v1/responses", content=content, headers=served.door.by("ada"))
        assert answer.status_code in ((200, 400) if field == "input" else (400, 404)), (field, answer.text)
        assert answer.json()
