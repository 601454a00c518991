"""Conversations of `/v1`: ids of items say which run they belong to, and a second device reads what was said."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from temporalio.client import WorkflowHandle

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.http_server import http_server
from tests.support.lab import Lab
from tests.support.openai_door_agents import MODEL, SCRIPTS, scripted
from tests.support.openai_turn import Turn
from tests.system.features.test_serve_openai import TOKENS, Served, sdk


@pytest.fixture(scope="module")
async def served(lab: Lab) -> AsyncIterator[Served]:
    queue = f"conversations-{uuid.uuid4().hex[:6]}"
    lab.model.script(MODEL, scripted(SCRIPTS))
    async with (
        running_worker(lab.client, load(["tests.support.openai_door_agents"]), lab.telemetry, queue),
        http_server(lab.client, task_queue=queue, tokens=TOKENS) as door,
        http_server(lab.client, task_queue=queue, tokens=TOKENS) as other,
        sdk(door) as client,
        sdk(other) as other_client,
    ):
        yield Served(lab, door, client, other_client)


def _reference(item: Any) -> Any:
    return {"type": "item_reference", "id": item.id}


def _user(text: str) -> Any:
    return {"role": "user", "content": text}


async def _items(served: Served, conversation: str, token: str = "ada", **query: Any) -> Any:
    path = f"/v1/conversations/{conversation}/items"
    return await served.door.http.get(path, params=query, headers=served.door.by(token))


async def test_an_approval_is_given_by_the_items_id_alone(served: Served) -> None:
    """Clients that keep their own conversation send all of it: as references, or as whole items."""
    create = served.other.responses.create
    for send_again in (_reference, lambda item: item.to_dict()):
        [request] = (await served.client.responses.create(model="seller", input="Give it back.")).output
        approve = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        done = await create(model="seller", input=[_user("Give it back."), send_again(request), approve])
        assert (done.status, done.output_text) == ("completed", "Given back.")
        assert request.id.endswith(f"@{done.id}")
        with pytest.raises(openai.BadRequestError):
            await create(model="seller", input=[approve])


async def test_a_question_is_answered_by_the_calls_id_alone(served: Served) -> None:
    create = served.other.responses.create
    [question] = (await served.client.responses.create(model="seller", input="Ask me.")).output
    answer = {"type": "function_call_output", "call_id": question.call_id, "output": "Both."}
    done = await create(model="seller", input=[_user("Ask me."), question.to_dict(), answer])
    assert (done.output_text, [item.type for item in done.output]) == ("Thank you.", ["mcp_call", "message"])


async def test_what_a_sub_agent_asks_is_decided_by_the_items_id_alone(served: Served) -> None:
    """The response is the one that the client has asked for."""
    waiting = await served.client.responses.create(model="manager", input="Let it be done.")
    # An approval is announced once the tenant's rules have been asked for.
    question, request = sorted(waiting.output, key=lambda item: item.type)
    approve: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    answer: Any = {"type": "function_call_output", "call_id": question.call_id, "output": "Both."}
    done = await served.other.responses.create(model="manager", input=[_reference(request), approve, answer])
    assert (done.id, done.output_text) == (waiting.id, "It is done.")


async def test_references_continue_the_run_of_the_newest_item(served: Served) -> None:
    """The messages before them are those that the run has."""
    prompt = served.script(Turn("One."), Turn("Two."), Turn("Three."))
    create = served.client.responses.create
    first = await create(model="seller", input=prompt)
    known = [_user(prompt), _reference(first.output[0])]
    second = await create(model="seller", input=[*known, _user("Go on.")])
    assert (second.output_text, second.previous_response_id) == ("Two.", first.id)
    again = [*known, _user("Go on."), _reference(second.output[0]), _user("And on.")]
    third = await served.other.responses.create(model="seller", input=again)
    assert (third.output_text, third.previous_response_id) == ("Three.", second.id)
    sent = [
        each for each in served.lab.model.requests_of(MODEL, run=prompt)[-1].conversation if each["role"] != "system"
    ]
    assert [each["content"] for each in sent] == [prompt, "One.", "Go on.", "Two.", "And on."]
    with pytest.raises(openai.BadRequestError, match="not empty"):
        await create(model="seller", input=known)
    foreign: Any = [{"type": "item_reference", "id": "msg_x@resp_of_nobody"}, _user("Hello.")]
    with pytest.raises(openai.NotFoundError):
        await create(model="seller", input=foreign)


async def test_a_conversation_is_read_and_continued_by_its_id_or_by_that_of_any_response(served: Served) -> None:
    prompt = served.script(
        Turn("One.", calls=[("search_orders", '{"customer": "Ada"}', "a")]), Turn("Two."), Turn("Three.")
    )
    first = await served.client.responses.create(model="seller", input=prompt)
    conversation = first.to_dict()["conversation"]["id"]
    second = await served.other.responses.create(model="seller", input="Go on.", conversation=conversation)
    assert (second.output_text, second.previous_response_id) == ("Three.", first.id)
    assert second.to_dict()["conversation"]["id"] == conversation

    pages = [(await _items(served, each, order="asc")).json() for each in (conversation, first.id, second.id)]
    assert pages[0] == pages[1] == pages[2]
    items = pages[0]["data"]
    told = [
        (item["type"], item.get("role"), (item.get("content") or [{"text": item.get("output")}])[0]["text"])
        for item in items
    ]
    assert told[:2] == [("message", "user", prompt), ("message", "assistant", "One.")]
    assert (items[2]["type"], items[2]["name"], json.loads(items[2]["output"])[0]["id"]) == (
        "mcp_call",
        "search_orders",
        7,
    )
    assert told[3:] == [
        ("message", "assistant", "Two."), ("message", "user", "Go on."), ("message", "assistant", "Three."),
    ]  # fmt: skip
    newest = (await _items(served, conversation, limit=2)).json()
    assert ([item["id"] for item in newest["data"]], newest["has_more"]) == ([items[5]["id"], items[4]["id"]], True)
    rest = (await _items(served, conversation, after=newest["last_id"], limit=100)).json()
    assert ([item["id"] for item in rest["data"]], rest["has_more"]) == ([item["id"] for item in items[3::-1]], False)
    read = await served.client.conversations.retrieve(conversation)
    assert (read.id, read.object) == (conversation, "conversation")
    assert [item.id async for item in served.client.conversations.items.list(conversation)] == [
        item["id"] for item in items[::-1]
    ]


async def test_items_of_a_conversation_keep_their_ids_and_are_referred_to(served: Served) -> None:
    prompt = served.script(Turn("One."), Turn("Two."), Turn("Three."))
    create = served.client.responses.create
    first = await create(model="seller", input=prompt)
    second = await create(model="seller", input="Go on.", conversation=first.id)
    items = (await _items(served, first.id, order="asc")).json()["data"]
    reference: Any = {"type": "item_reference", "id": items[-1]["id"]}
    third = await create(model="seller", input=[reference, _user("And on.")])
    assert (third.output_text, third.previous_response_id) == ("Three.", second.id)
    longer = (await _items(served, third.id, order="asc")).json()["data"]
    assert longer[: len(items)] == items


async def test_a_repeated_turn_of_a_conversation_is_one_run_and_two_equal_ones_are_two(served: Served) -> None:
    """By an SDK's retry count, or by the key, also when the conversation has moved on. Nobody makes a branch by it."""
    texts = [f"Answer {number}." for number in range(9)]
    first = await served.client.responses.create(model="seller", input=served.script(*map(Turn, texts)))
    again, key = {"x-stainless-retry-count": "1"}, {"Idempotency-Key": uuid.uuid4().hex}

    async def say(text: str, headers: Any = None, client: Any = served.client) -> Any:
        return await client.responses.create(model="seller", input=text, conversation=first.id, extra_headers=headers)

    yes = await say("Yes.")
    assert (await say("Yes.", again, served.other)).id == yes.id
    second = await say("Yes.")
    keyed = await say("Book it.", key)
    assert (await say("Book it.", key, served.other)).id == keyed.id
    last = await say("Thanks.")
    assert (await say("Book it.", key)).id == keyed.id
    with pytest.raises(openai.UnprocessableEntityError) as reused:
        await say("Book another.", key)
    assert reused.value.code == "key_reused"
    runs = [first, yes, second, keyed, last]
    assert len({each.id for each in runs}) == 5
    assert [each.output_text for each in runs] == texts[:5]
    assert [each.previous_response_id for each in runs[1:]] == [each.id for each in runs[:-1]]
    assert {each.to_dict()["conversation"]["id"] for each in runs} == {first.id}

    many = await asyncio.gather(*(say(f"Racer {number}.") for number in range(4)), return_exceptions=True)
    accepted = [each for each in many if not isinstance(each, BaseException)]
    refused = [each for each in many if isinstance(each, openai.BadRequestError)]
    assert (len(accepted), len(refused)) == (1, 3), many
    assert accepted[0].to_dict()["conversation"]["id"] == first.id


async def test_a_key_is_one_run_whichever_way_a_conversation_is_named(served: Served) -> None:
    """A new run, a turn of the conversation, a continuation of a response: the key of one of them is refused in the others."""
    create = served.client.responses.create
    prompt = served.script(*(Turn(f"Answer {number}.") for number in range(5)))
    keys = [{"Idempotency-Key": uuid.uuid4().hex} for _ in range(3)]
    first = await create(model="seller", input=prompt, extra_headers=keys[0])
    turn = await create(model="seller", input="Yes.", conversation=first.id, extra_headers=keys[1])
    branch = await create(model="seller", input="Yes.", previous_response_id=first.id, extra_headers=keys[2])
    later = await create(model="seller", input="Thanks.", conversation=first.id)
    started = [first.id, turn.id, branch.id, later.id]
    assert len(set(started)) == 4
    ways: list[dict[str, Any]] = [{"conversation": first.id}, {"previous_response_id": turn.id}, {}]
    for key in keys:
        for way in ways[
            : 2 if key is keys[1] else 3
        ]:  # a new run names no conversation in which the turn could be found
            with pytest.raises(openai.UnprocessableEntityError) as reused:
                await create(model="seller", input="Book it.", extra_headers=key, **way)
            assert reused.value.code == "key_reused"
    again = await create(model="seller", input="Yes.", previous_response_id=first.id, extra_headers=keys[2])
    assert again.id == branch.id


async def test_a_repeated_first_turn_of_a_branch_stays_in_the_branch(served: Served) -> None:
    """Another branch has the same words."""
    prompt = served.script(Turn("One."), Turn("Two."), Turn("Three."))
    create = served.client.responses.create
    first = await create(model="seller", input=prompt)
    yes = await create(model="seller", input="Yes.", previous_response_id=first.id)
    branch = await create(model="seller", input="No.", previous_response_id=first.id)
    retry = {"x-stainless-retry-count": "1"}
    turn = await create(model="seller", input="Yes.", conversation=branch.id, extra_headers=retry)
    assert (turn.previous_response_id, turn.output_text) == (branch.id, "Three.")
    assert turn.id != yes.id


async def test_a_client_without_ids_goes_on_after_a_question(served: Served) -> None:
    """The answer that it sends again is a part of the conversation."""
    [question] = (await served.client.responses.create(model="seller", input="Ask me.")).output
    called = {name: value for name, value in question.to_dict().items() if name != "id"}
    answer = {"type": "function_call_output", "call_id": question.call_id, "output": "Both."}
    history: list[Any] = [_user("Ask me."), called, answer]
    done = await served.client.responses.create(model="seller", input=history)
    assert done.output_text == "Thank you."
    served.lab.model.script(MODEL, scripted({**SCRIPTS, "Ask me.": [Turn("x"), Turn("y"), Turn("Gladly.")]}))
    later = [*history, {"role": "assistant", "content": "Thank you."}, _user("Again.")]
    assert (await served.client.responses.create(model="seller", input=later)).output_text == "Gladly."
    served.lab.model.script(MODEL, scripted(SCRIPTS))


async def test_a_repeated_approval_is_accepted_once_and_gets_the_same_response(served: Served) -> None:
    create = served.client.responses.create
    [request] = (await create(model="seller", input="Give it back.")).output
    approve: Any = [{"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}]
    done = await create(model="seller", input=approve)
    retry = {"x-stainless-retry-count": "1"}
    again = await create(model="seller", input=approve, extra_headers=retry)
    assert (done.output_text, again.id, again.output_text) == ("Given back.", done.id, "Given back.")
    events = [each async for each in await create(model="seller", input=approve, extra_headers=retry, stream=True)]
    assert (events[-1].type, events[-1].response.output_text) == ("response.completed", "Given back.")
    with pytest.raises(openai.BadRequestError):
        await create(model="seller", input=approve)


async def test_a_chat_completion_that_waited_is_answered_when_it_is_repeated_after_the_decision(served: Served) -> None:
    key = {"Idempotency-Key": uuid.uuid4().hex}
    chat = served.client.chat.completions.create
    with pytest.raises(openai.UnprocessableEntityError) as waits:
        await chat(model="seller", messages=[_user("Give it back.")], extra_headers=key)
    run_id = waits.value.message.rpartition("/v1/responses/")[2].split()[0]
    decision, by = {"call_id": "r", "decision": "approve"}, served.door.by("ada")
    answer = await served.door.http.post(f"/api/runs/{run_id}/decisions", json=decision, headers=by)
    assert answer.status_code == 200
    await served.lab.client.get_workflow_handle(run_id).result()
    again = await chat(model="seller", messages=[_user("Give it back.")], extra_headers=key)
    assert (again.id, again.choices[0].message.content) == (run_id, "Given back.")


async def test_a_branch_is_a_conversation_of_its_own(served: Served) -> None:
    """The first continuation belongs to the conversation, whichever replica was asked; the others do not."""
    prompt = served.script(Turn("One."), Turn("Two."), Turn("Three."))
    first = await served.client.responses.create(model="seller", input=prompt)
    texts = [f"Go on {number}." for number in range(6)]
    clients = [served.client, served.other] * 3
    many = await asyncio.gather(
        *(
            client.responses.create(model="seller", input=text, previous_response_id=first.id)
            for client, text in zip(clients, texts, strict=True)
        )
    )
    conversations = [each.to_dict()["conversation"]["id"] for each in many]
    assert conversations.count(first.id) == 1
    assert len(set(conversations)) == 6
    for response, text, conversation in zip(many, texts, conversations, strict=True):
        items = (await _items(served, conversation)).json()["data"]
        assert [item["content"][0]["text"] for item in items] == ["Two.", text, "One.", prompt]
        again = await served.other.responses.create(model="seller", input=text, previous_response_id=first.id)
        assert again.id == response.id


async def test_a_conversation_is_its_tenants(served: Served) -> None:
    """Bad ids and pages get a sentence."""
    mine = await served.client.responses.create(model="seller", input=served.script(Turn("One.")))
    for answer in (
        await _items(served, mine.id, token="bob"),
        await _items(served, "resp_none"),
        await served.door.http.get(f"/v1/conversations/{mine.id}", headers=served.door.by("bob")),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "run_not_found")
    for query, param in (
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "x"}, "after"),
    ):
        answer = await _items(served, mine.id, **query)
        assert (answer.status_code, param in answer.json()["error"]["message"]) == (400, True), answer.text
    for fields in ({"conversation": 7}, {"conversation": mine.id, "previous_response_id": mine.id}):
        body = {"model": "seller", "input": "x", **fields}
        answer = await served.door.http.post("/v1/responses", json=body, headers=served.door.by("ada"))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "conversation")


async def test_the_agents_own_tools_may_be_declared(served: Served) -> None:
    """Clients declare an MCP server to decide on its approvals. It is not named as ignored."""
    own: Any = {"type": "mcp", "server_label": "mulligan", "server_url": "http://x", "require_approval": "always"}
    raw = await served.client.responses.with_raw_response.create(
        model="seller", input=served.script(Turn("Hi.")), tools=[own]
    )
    assert "mulligan-ignored" not in raw.headers
    raw = await served.client.responses.with_raw_response.create(
        model="seller", input=served.script(Turn("Hi.")), tools=[own, {"type": "web_search"}]
    )
    assert raw.headers["mulligan-ignored"] == "tools"


async def test_a_chat_completion_that_streams_says_what_waits_for_a_person(served: Served) -> None:
    """In one line: the call, what is to be decided, and where; then it waits."""
    lines = {
        "Give it back.": '`refund` with {"order": 7, "amount": {"euros": 2.0}} waits for approval',
        "Ask me.": "a person has to answer: Which?",
    }
    for prompt, line in lines.items():
        text = ""
        chunks = await served.client.chat.completions.create(model="seller", messages=[_user(prompt)], stream=True)
        async for chunk in chunks:
            text += chunk.choices[0].delta.content or ""
            if text.endswith("]"):
                by, path = served.door.by("ada"), f"/api/runs/{chunk.id}"
                assert line in text
                assert text.count("\n") == 0
                assert path in text
                [wait] = (await served.door.http.get(f"{path}/pending", headers=by)).json()
                assert f"{chunk.id} {wait['call_id']}" in text
                reply = {"decision": "approve"} if wait["kind"] == "approval" else {"text": "Both."}
                door = "decisions" if wait["kind"] == "approval" else "answers"
                await served.door.http.post(f"{path}/{door}", json={"call_id": wait["call_id"], **reply}, headers=by)
        assert text.endswith(("]\n\nGiven back.", "]\n\nThank you."))


async def updates_of(run: WorkflowHandle[Any, Any]) -> int:
    """How many updates its history has."""
    events = (await run.fetch_history()).events
    return sum(each.HasField("workflow_execution_update_accepted_event_attributes") for each in events)


@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize("way", ["chat", "chat stream", "responses", "responses stream"])
async def test_a_run_stops_when_its_client_disconnects_if_the_server_is_told_so(
    served: Served, stops: bool, way: str
) -> None:
    first = await served.client.responses.create(model="seller", input=served.script(Turn("Hi.")))
    queue = (await served.lab.client.get_workflow_handle(first.id).describe()).task_queue
    gate = asyncio.Event()
    prompt = served.script(Turn(calls=[("search_orders", '{"customer": "Ada"}', "a")], wait=gate), Turn("Never."))
    path = "chat/completions" if "chat" in way else "responses"
    body: dict[str, Any] = {"model": "seller", "stream": "stream" in way}
    body |= {"messages": [_user(prompt)]} if "chat" in way else {"input": prompt}
    left = asyncio.Event()

    def noting(application: ASGIApp) -> ASGIApp:
        async def served_until(scope: Scope, receive: Receive, send: Send) -> None:
            await application(scope, receive, send)
            if scope.get("method") == "POST":
                left.set()

        return served_until

    options: dict[str, Any] = {"task_queue": queue, "tokens": TOKENS, "stop_on_disconnect": stops, "wrap": noting}
    async with http_server(served.lab.client, **options) as door:
        key = {"Idempotency-Key": uuid.uuid4().hex, **door.by("ada")}
        request = asyncio.create_task(door.http.post(f"/v1/{path}", json=body, headers=key))
        while not served.lab.model.requests_of(MODEL, run=prompt):
            await asyncio.sleep(0.05)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        listed = (await door.http.get("/api/runs", params={"limit": 1}, headers=door.by("ada"))).json()
        run_id = listed["runs"][0]["id"]
        await left.wait()
        run = served.lab.client.get_workflow_handle(run_id)
        while stops and not await updates_of(run):
            await asyncio.sleep(0.02)
        for _ in range(5):  # longer than a stop would take that nobody asked for
            await door.http.get(f"/api/runs/{run_id}", headers=door.by("ada"))
        gate.set()
        result = await run.result()
    assert result["status"] == ("stopped" if stops else "completed")
