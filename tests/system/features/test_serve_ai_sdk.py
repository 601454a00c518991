"""`/ai-sdk/{agent}`: the UI message stream of the AI SDK on a real socket. npm's `ai` reads it in tests/system."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from mulligan import Agent
from mulligan.client.read_run import ask_once
from mulligan.client.start_run import read_input
from mulligan.serve import ai_sdk
from tests.support.ai_sdk_client import Chat, Chunks, only, types
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Failure, Turn
from tests.support.people_agents import desk, front, wake
from tests.support.shop_agents import shop

REFUND = call("refund", '{"order": 7, "amount": {"euros": 2}}', "c1")


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    async with http_server(lab.client) as served:
        yield served


@pytest.fixture
def script(lab: Lab) -> Callable[..., None]:
    """Script the model of an agent: the protocol names an agent, and not a model."""

    def scripted(agent: Agent, *turns: Turn) -> None:
        lab.model.script(str(agent.model).partition(":")[2], list(turns))

    return scripted


async def test_a_message_that_is_sent_again_has_the_same_answer_and_a_second_turn_follows(
    door: Door, script: Callable[..., None]
) -> None:
    """An answer is one message of steps, texts and calls; once it has ended, there is nothing to resume."""
    calls = [("search_orders", "{'customer': 'Ada'}", "a"), ("serch", "{}", "b"), ("refuse", "{}", "c")]
    script(shop, Turn("Let me look.", calls=calls), DONE, Turn("Bye."))
    chat = Chat(door, "shop")
    chunks = await chat.say("Where is my order?")
    assert "Ada" in only(chunks, "tool-output-available")["output"]
    assert await chat.resume() == []
    assert await chat.say("Where is my order?") == chunks
    second = await chat.say("Bye.", "m2")
    assert only(second, "text-delta")["delta"] == "Bye."
    assert second[0]["messageId"] != chunks[0]["messageId"]


async def test_the_stream_ends_at_an_approval_and_goes_on_under_the_same_message_id(
    door: Door, script: Callable[..., None]
) -> None:
    """A client that returns in between gets the whole message with the request; sent several times, also at once, it is one decision."""
    script(desk, REFUND, DONE)
    chat = Chat(door, "desk")
    chunks = await chat.say("Refund order 7.")
    assert types(chunks)[-4:] == ["tool-input-available", "tool-approval-request", "finish-step", "finish"]
    assert await chat.resume() == chunks
    approval_id = only(chunks, "tool-approval-request")["approvalId"]
    part = {"type": "tool-refund", "toolCallId": "c1", "state": "approval-responded"}
    message = {"id": chunks[0]["messageId"], "role": "assistant"}
    replied = {**message, "parts": [{**part, "approval": {"id": approval_id, "approved": True}}]}
    rest, *others = await asyncio.gather(*(chat.post(replied) for _ in range(4)))
    assert rest[0] == chunks[0]
    outputs = [only(each, "tool-output-available")["output"] for each in (rest, *others)]
    assert outputs == ["refunded 2 for order 7"] * 4
    assert not {"tool-input-start", "tool-input-available", "tool-approval-response"} & set(types(rest))
    assert types(rest)[-1] == "finish"
    assert types(await chat.post(replied)) == types(rest)
    whole = await chat.say("Refund order 7.")
    assert only(whole, "tool-approval-response")["approved"] is True


async def test_approvals_and_questions_of_sub_agents_are_parts_of_the_message(
    door: Door, script: Callable[..., None]
) -> None:
    """One after the other is replied to, and the stream waits for the result of a call that takes a while. The message
    from its start has them as well."""
    slow = ("refund", '{"order": 8, "amount": {"euros": 2}}', "c1")
    script(desk, Turn(calls=[slow, ("ask_person", '{"question": "Which?"}', "c2")]), DONE)
    script(front, call("desk", '{"prompt": "Refund order 7."}', "d1"), DONE)
    chat = Chat(door, "front")
    chunks = await chat.say("Refund order 7.")
    request = only(chunks, "tool-approval-request")
    below = f"{chunks[0]['messageId']}/d1"
    assert request["toolCallId"] == f"c1@{below}"
    [asked] = [chunk for chunk in chunks if chunk.get("toolMetadata")]
    assert asked["toolMetadata"]["mulligan"]["question"] == "Which?"
    approval = {"id": request["approvalId"], "approved": True}
    part = {"type": "tool-refund", "toolCallId": request["toolCallId"], "state": "approval-responded"}
    message = {"id": chunks[0]["messageId"], "role": "assistant", "parts": [{**part, "approval": approval}]}
    rest = await chat.post(message)
    assert only(rest, "tool-output-available")["output"] == "refunded 2 for order 8"
    [again] = [chunk for chunk in rest if chunk.get("toolMetadata")]
    answer = {**again, "type": "tool-ask_person", "state": "output-available", "output": "Both."}
    last = await chat.post({**message, "parts": [answer]})
    outputs = {chunk["toolCallId"]: chunk["output"] for chunk in last if chunk["type"] == "tool-output-available"}
    assert outputs == {f"c2@{below}": "Both.", "d1": "done"}
    assert types(last)[-1] == "finish"
    whole = {
        chunk["toolCallId"] for chunk in await chat.say("Refund order 7.") if chunk["type"] == "tool-input-available"
    }
    assert whole >= {"d1"}


async def test_a_client_that_left_gets_the_message_from_its_start(door: Door, script: Callable[..., None]) -> None:
    """Of the turn that runs; nothing (204) when none does."""
    script(desk, call("nap", '{"seconds": 60}', "c1"), DONE)
    chat = Chat(door, "desk")
    assert await chat.resume() == []
    saying = asyncio.create_task(chat.say("Sleep."))
    while not await chat.resume(stop_after="tool-input-available"):
        await asyncio.sleep(0.1)
    resumed: Chunks = []
    resuming = asyncio.create_task(chat.resume(received=resumed))
    while not resumed:
        await asyncio.sleep(0.02)
    await wake()
    await resuming
    assert types(resumed)[0] == "start"
    assert types(resumed) == types(await saying)
    assert await chat.resume() == []


async def test_what_cannot_be_served_is_refused_with_a_sentence(door: Door, script: Callable[..., None]) -> None:
    """Before the stream as JSON {error, code}, in it as the chunk `error`."""
    script(desk, REFUND, DONE)
    chat = Chat(door, "desk")
    chunks = await chat.say("Go.")
    text = {"type": "text", "text": "x"}
    user, assistant = {"id": "m2", "role": "user"}, {"id": chunks[0]["messageId"], "role": "assistant"}
    responded = {"type": "tool-refund", "toolCallId": "c1", "state": "approval-responded"}
    rows: list[tuple[dict[str, Any], int, str, str]] = [
        ({"messages": [{**user, "parts": [text]}]}, 409, "busy", "has not finished"),
        ({"messages": [{**user, "id": "m1", "parts": [text]}]}, 409, "busy", "stop it"),
        ({"messages": [{**user, "parts": [{"type": "file"}]}]}, 422, "invalid_input", "not text"),
        ({"messages": [{**user, "parts": []}]}, 422, "invalid_input", "no text"),
        ({"messages": [user]}, 422, "invalid_input", "parts"),
        ({"messages": []}, 422, "invalid_input", "has the role null and no replies"),
        (
            {"messages": [{**assistant, "parts": [text]}]},
            422,
            "invalid_input",
            'has the role "assistant" and no replies',
        ),
        ({"messages": [{**assistant, "parts": [responded]}]}, 422, "invalid_input", "send back the id"),
        ({"messages": [{**assistant, "id": "old", "parts": [responded]}]}, 409, "not_the_newest", "load it"),
        ({"messages": [user], "trigger": "resume-stream"}, 422, "invalid_input", "regenerate-message"),
        ({"messages": 7}, 422, "invalid_input", "messages"),
        ({"messages": [{**user, "parts": [text]}], "id": " "}, 422, "invalid_input", "conversation's id"),
    ]
    for fields, status, code, sentence in rows:
        answer = await door.http.post("/ai-sdk/desk", json={"id": chat.id, "trigger": "submit-message", **fields})
        assert (answer.status_code, answer.json()["code"]) == (status, code), fields
        assert sentence in answer.json()["error"]
    script(shop, Turn(failure=Failure(400)))
    assert types(await Chat(door, "shop").say("x"))[-2:] == ["finish-step", "error"]


def brief(message: dict[str, Any]) -> list[Any]:
    """The parts of a message: texts, and calls with their states."""
    return [
        part.get("text") or (part["type"].removeprefix("tool-"), part["state"])
        for part in message["parts"]
        if part["type"] == "text" or part["type"].startswith("tool-")
    ]


async def test_a_second_device_gets_the_whole_conversation(door: Door, script: Callable[..., None]) -> None:
    """Turns that have ended with their answers, and of one in flight the user's message."""
    calls = [("search_orders", "{'customer': 'Ada'}", "a"), ("serch", "{}", "b"), ("refuse", "{}", "c")]
    script(shop, Turn("Let me look.", calls=calls), DONE, Turn("Bye."))
    chat = Chat(door, "shop")
    assert await chat.messages() == []
    chunks = await chat.say("Where is my order?")
    second = await chat.say("Bye.", "m2")
    question, answer, *others = await chat.messages()
    assert question == {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Where is my order?"}]}
    assert (answer["id"], answer["role"]) == (chunks[0]["messageId"], "assistant")
    ended = ("search_orders", "output-available"), ("serch", "output-error"), ("refuse", "output-error")
    assert brief(answer) == ["Let me look.", *ended, "done"]
    assert [part["type"] for part in answer["parts"]].count("step-start") == 2
    found = next(part for part in answer["parts"] if part.get("toolCallId") == "a")
    assert (found["providerExecuted"], found["input"]["customer"]) == (True, "Ada")
    assert found["output"] == only(chunks, "tool-output-available")["output"]
    assert [message["id"] for message in others] == ["m2", second[0]["messageId"]]

    script(desk, call("nap", '{"seconds": 60}', "c1"), DONE)
    chat = Chat(door, "desk")
    saying = asyncio.create_task(chat.say("Sleep."))
    while not await chat.resume(stop_after="tool-input-available"):
        await asyncio.sleep(0.1)
    [in_flight] = await chat.messages()
    assert in_flight["id"] == "m1"
    await wake()
    await saying
    assert [brief(each) for each in await chat.messages()] == [["Sleep."], [("nap", "output-available"), "done"]]


async def test_a_page_that_returns_decides_by_what_the_conversation_says(
    door: Door, script: Callable[..., None]
) -> None:
    """A turn that waits for people is a message with the requests, also where a sub-agent asks."""
    script(desk, Turn(calls=[*REFUND.calls, ("ask_person", '{"question": "Which?"}', "c2")]), DONE)
    script(front, call("desk", '{"prompt": "Refund order 7."}', "d1"), DONE)
    chat = Chat(door, "front")
    await chat.say("Refund order 7.")
    _, waiting = await chat.messages()
    sub_run = f"{waiting['id']}/d1"
    calls = {part["toolCallId"]: part for part in waiting["parts"] if "toolCallId" in part}
    refund, question = calls[f"c1@{sub_run}"], calls[f"c2@{sub_run}"]
    assert refund["state"] == "approval-requested"
    assert refund["input"] == {"order": 7, "amount": {"euros": 2}}
    assert (question["state"], question["toolMetadata"]["mulligan"]["question"]) == ("input-available", "Which?")
    refund |= {"state": "approval-responded", "approval": {**refund["approval"], "approved": True}}
    question |= {"state": "output-available", "output": "Both."}
    rest = await chat.post(waiting)
    assert types(rest)[-1] == "finish"
    outputs = {chunk["toolCallId"]: chunk["output"] for chunk in rest if chunk["type"] == "tool-output-available"}
    assert outputs[f"c1@{sub_run}"] == "refunded 2 for order 7"
    assert outputs["d1"] == "done"
    assert brief((await chat.messages())[1])[-1] == "done"


async def test_metadata_of_the_request_and_of_the_message_is_the_runs(
    lab: Lab, door: Door, script: Callable[..., None]
) -> None:
    """Of the message's only the texts, as it is the page's own. The conversation says it again."""
    script(shop, DONE)
    chat = Chat(door, "shop")
    parts = [{"type": "text", "text": "Hi."}]
    message = {"id": "m1", "role": "user", "parts": parts, "metadata": {"page": "cart", "sent": 7, "thread_id": "x"}}
    chunks = await chat.post(message, metadata={"page": "home", "plan": "pro"})
    run_input = await read_input(lab.client, chunks[0]["messageId"])
    assert run_input is not None
    assert run_input.metadata == {"page": "cart", "plan": "pro", "thread_id": chat.id, "message_id": "m1"}
    question, _ = await chat.messages()
    assert question["metadata"] == {"page": "cart", "plan": "pro"}
    for metadata, sentence in [
        ({"n": 1}, "texts"),
        ("x", "object"),
        ({"n": "x" * 600}, "512"),
        (dict.fromkeys("abcdefghijklmnopq", ""), "16"),
    ]:
        body = {"id": chat.id, "messages": [{**message, "id": "m2"}], "metadata": metadata}
        refused = await door.http.post("/ai-sdk/shop", json=body)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
        assert sentence in refused.json()["error"]


async def test_a_conversation_is_the_tenants_and_a_page_gets_its_newest_turns(
    lab: Lab, script: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another tenant has a conversation of its own under the same id."""
    script(shop, Turn("First."), Turn("Second."))
    async with http_server(lab.client, tokens="ada:secret-a,ben:secret-b") as door:
        ada, ben = ({"Authorization": f"Bearer secret-{each}"} for each in "ab")
        path = f"/ai-sdk/shop/{uuid.uuid4()}"
        for number in (1, 2):
            message = {"id": f"m{number}", "role": "user", "parts": [{"type": "text", "text": "Hi."}]}
            body = {"id": path.rpartition("/")[2], "messages": [message]}
            assert (await door.http.post("/ai-sdk/shop", json=body, headers=ada)).status_code == 200
        messages = (await door.http.get(path, headers=ada)).json()
        assert [brief(message) for message in messages] == [["Hi."], ["First."], ["Hi."], ["Second."]]
        assert (await door.http.get(path, headers=ben)).json() == []
        assert (await door.http.get(path)).status_code == 401
        for bound, value in [("MOST_TURNS", 1), ("MOST_CHARS", 100)]:
            with monkeypatch.context() as changed:
                changed.setattr(ai_sdk, bound, value)
                assert (await door.http.get(path, headers=ada)).json() == messages[2:]


async def test_a_turn_that_no_worker_answers_for_is_a_clear_problem(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask_once.__kwdefaults__ is not None
    monkeypatch.setitem(ask_once.__kwdefaults__, "timeout", timedelta(seconds=0.5))
    async with http_server(lab.client, task_queue=f"nobody-{uuid.uuid4().hex[:8]}") as door:
        chat = Chat(door, "shop")
        saying = asyncio.create_task(chat.say("Hi."))
        answer = await door.http.get(f"/ai-sdk/shop/{chat.id}")
        while answer.status_code == 200 and answer.json() == []:  # it has not been started
            answer = await door.http.get(f"/ai-sdk/shop/{chat.id}")
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)
