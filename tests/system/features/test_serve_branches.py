"""A message that is answered again, or edited, begins a branch of the conversation, from the messages before it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from mulligan import Agent
from mulligan.client.start_run import read_input
from tests.support.ag_ui_client import AgUiThread, types, user
from tests.support.ai_sdk_client import Chat, Chunks
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn
from tests.support.people_agents import desk, wake
from tests.support.shop_agents import shop

FIRST, SECOND, THIRD, FOURTH = (Turn(each) for each in ("First.", "Second.", "Third.", "Fourth."))


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    async with http_server(lab.client) as served:
        yield served


@pytest.fixture
def script(lab: Lab) -> Callable[..., None]:
    """Script the answers of an agent's model in the order of the requests."""

    def scripted(agent: Agent, *turns: Turn) -> None:
        left = iter(turns)
        lab.model.script(str(agent.model).partition(":")[2], lambda _request, _number: next(left))

    return scripted


def written(chunks: Chunks) -> str:
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta")


async def texts(chat: Chat) -> list[str]:
    """The texts of the conversation, as a page that returns gets it."""
    return [part["text"] for message in await chat.messages() for part in message["parts"] if part["type"] == "text"]


def requests(lab: Lab, text: str) -> list[list[Any]]:
    """What the model was sent in the runs with a text: roles, and texts of the messages after the instructions."""
    return [
        [message["content"] for message in request.json["messages"][1:]] for request in lab.model.requests_of(run=text)
    ]


async def test_regenerate_answers_a_message_again_without_the_answer_it_had(
    lab: Lab, door: Door, script: Callable[..., None]
) -> None:
    """The first one and a later one; and the conversation goes on from the new answer."""
    script(shop, FIRST, SECOND, THIRD, FOURTH)
    chat = Chat(door, "shop")
    one, two = f"One of {chat.id}?", f"Two of {chat.id}?"
    first = await chat.say(one)
    again = await chat.regenerate(one)
    assert written(again) == "Second."
    assert again[0]["messageId"] not in ("", first[0]["messageId"])
    assert await texts(chat) == [one, "Second."]
    assert written(await chat.say(two, "m2")) == "Third."
    answered = await chat.regenerate(two, "m2")
    assert written(answered) == "Fourth."
    assert await texts(chat) == [one, "Second.", two, "Fourth."]
    assert requests(lab, one) == [[one], [one], [one, "Second.", two], [one, "Second.", two]]
    assert (await door.http.get(f"/api/runs/{first[0]['messageId']}")).json()["status"] == "completed"


async def test_an_edited_message_takes_the_place_of_the_earlier_one(
    lab: Lab, door: Door, script: Callable[..., None]
) -> None:
    """Also one before the newest: what came after it is no part of the branch."""
    script(shop, FIRST, SECOND, THIRD, FOURTH)
    chat = Chat(door, "shop")
    await chat.say(f"One of {chat.id}?", "m1")
    await chat.say("Two?", "m2")
    edited = f"Another one of {chat.id}?"
    chunks = await chat.edit(edited, "m1")
    assert written(chunks) == "Third."
    assert await chat.edit(edited, "m1") == chunks, "an edit that is sent again is the same one"
    assert await texts(chat) == [edited, "Third."]
    assert (await chat.messages())[0]["id"] == "m1"
    assert written(await chat.say("And two?", "m3")) == "Fourth."
    assert requests(lab, edited) == [[edited], [edited, "Third.", "And two?"]]


async def test_requests_at_the_same_time_and_again_make_one_branch(door: Door, script: Callable[..., None]) -> None:
    """While it is open; and after its end, if the request names the answer that it replaces."""
    script(desk, FIRST, call("nap", '{"seconds": 60}', "c1"), SECOND)
    chat = Chat(door, "desk")
    first = (await chat.say("Go."))[0]["messageId"]
    several = [asyncio.create_task(chat.regenerate("Go.", replaces=first)) for _ in range(3)]
    await wake()
    streams = await asyncio.gather(*several)
    assert [written(each) for each in streams] == ["Second."] * 3
    assert len({each[0]["messageId"] for each in streams}) == 1
    assert (await chat.regenerate("Go.", replaces=first))[0] == streams[0][0]
    assert await texts(chat) == ["Go.", "Second."]


async def test_an_answer_of_a_branch_is_replaced_as_the_first_one_was(door: Door, script: Callable[..., None]) -> None:
    """Each request names the answer that is on the page, as `regenerate({ messageId })` does."""
    script(shop, FIRST, SECOND, THIRD)
    chat = Chat(door, "shop")
    first = (await chat.say("Go."))[0]["messageId"]
    second = await chat.regenerate("Go.", replaces=first)
    third = await chat.regenerate("Go.", replaces=second[0]["messageId"])
    assert [written(second), written(third)] == ["Second.", "Third."]
    assert await chat.regenerate("Go.", replaces=second[0]["messageId"]) == third, "sent again, it is the same one"
    assert await texts(chat) == ["Go.", "Third."]


async def test_a_branch_keeps_what_the_earlier_answer_had_and_asks_nothing(
    lab: Lab, door: Door, script: Callable[..., None]
) -> None:
    """Metadata, the client's instructions and the tenant; tools run, as in any turn. Another tenant has no part of it."""
    script(shop, FIRST, call("search_orders", '{"customer": "Ada"}', "a"), DONE)
    async with http_server(lab.client, tokens="ada:secret-a,ben:secret-b") as served:
        served.http.headers["Authorization"] = "Bearer secret-a"
        chat = Chat(served, "shop")
        said = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hi."}], "metadata": {"page": "cart"}}
        system = {"id": "s", "role": "system", "parts": [{"type": "text", "text": "Be brief."}]}
        body = {"id": chat.id, "messages": [system, said], "metadata": {"plan": "pro"}}
        assert (await served.http.post("/ai-sdk/shop", json=body)).status_code == 200
        again = await chat.regenerate("Hi.")
        assert "tool-output-available" in [chunk["type"] for chunk in again]
        run_input = await read_input(lab.client, again[0]["messageId"])
        assert run_input is not None
        kept = {"page": "cart", "plan": "pro", "thread_id": chat.id, "message_id": "m1"}
        assert (run_input.metadata, run_input.client_instructions) == (kept, "Be brief.")
        assert (run_input.tenant, run_input.prompt, run_input.messages) == ("ada", "Hi.", [])
        served.http.headers["Authorization"] = "Bearer secret-b"
        assert await chat.messages() == []
        refused = await served.http.get(f"/api/runs/{again[0]['messageId']}")
        assert refused.status_code == 404


async def test_nothing_branches_while_a_turn_is_open(door: Door, script: Callable[..., None]) -> None:
    script(desk, FIRST, call("refund", '{"order": 7, "amount": {"euros": 2}}', "c1"), DONE)
    chat = Chat(door, "desk")
    await chat.say("One?", "m1")
    waiting = (await chat.say("Refund order 7.", "m2"))[0]["messageId"]
    edited = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Another?"}]}
    again = {"id": "m2", "role": "user", "parts": [{"type": "text", "text": "Refund order 7."}]}
    for message, fields in [
        (edited, {"messageId": "m1"}),
        (edited, {"trigger": "regenerate-message"}),
        (again, {"trigger": "regenerate-message", "messageId": waiting}),
    ]:
        body = {"id": chat.id, "messages": [message], **fields}
        answer = await door.http.post("/ai-sdk/desk", json=body)
        assert (answer.status_code, answer.json()["code"]) == (409, "busy")


async def test_a_run_of_somebody_else_with_the_id_of_a_branch_is_passed_over(
    lab: Lab, door: Door, script: Callable[..., None]
) -> None:
    """And no client of the server can choose such an id."""
    script(shop, FIRST, SECOND, THIRD)
    chat = Chat(door, "shop")
    first = (await chat.say("Hi."))[0]["messageId"]
    taken = {"agent": "shop", "prompt": "Mine.", "id": f"{first}-branch-1"}
    refused = await door.http.post("/api/runs", json=taken)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    given = {"agent": "shop", "prompt": "Mine."}
    foreign = await lab.client.start_workflow("AgentWorkflow", given, id=f"{first}-branch-1", task_queue=lab.task_queue)
    await foreign.result()
    again = await chat.regenerate("Hi.")
    assert again[0]["messageId"] == f"{first}-branch-2"
    assert await texts(chat) == ["Hi.", "Third."]


async def test_ag_ui_answers_an_edited_message_and_one_again(lab: Lab, door: Door, script: Callable[..., None]) -> None:
    """`forwardedProps.regenerate` asks for another answer: without it, a message that is sent again returns to the thread."""
    script(shop, FIRST, SECOND, THIRD, FOURTH)
    thread = AgUiThread(door, "shop")
    one = user(f"One of {thread.id}?", "m1")
    await thread.post(one)
    again = await thread.post(one, forwardedProps={"regenerate": True})
    assert again[-1].result["output"] == "Second."
    answer = {"id": "a", "role": "assistant", "content": "Second."}
    await thread.post(one, answer, user("Two?", "m2"))
    returned = await thread.post(one)
    assert types(returned) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    edited = user(f"Another one of {thread.id}?", "m1")
    assert (await thread.post(edited))[-1].result["output"] == "Fourth."
    messages = (await door.http.get(f"/ag-ui/shop/{thread.id}")).json()["messages"]
    assert [message["content"] for message in messages] == [edited["content"], "Fourth."]
    assert requests(lab, str(edited["content"])) == [[edited["content"]]]


async def test_a_device_edits_a_message_of_its_snapshot(door: Door, script: Callable[..., None]) -> None:
    """Its ids are not those with which the messages were sent."""
    script(shop, FIRST, SECOND, THIRD, FOURTH)
    thread = AgUiThread(door, "shop")
    await thread.post(user("One?", "m1"))
    await thread.post(user("Two?", "m2"))
    messages = (await door.http.get(f"/ag-ui/shop/{thread.id}")).json()["messages"]
    question = messages[0]
    assert question["id"] != "m1"
    assert types(await thread.post(question))[1] == "MESSAGES_SNAPSHOT"
    edited = await thread.post({**question, "content": "Another one?"})
    assert edited[-1].result["output"] == "Third."
    own = user("Two again?", f"mulligan-{uuid.uuid4().hex}")
    assert (await thread.post(own))[-1].result["output"] == "Fourth.", "a new message with an id of our form"
