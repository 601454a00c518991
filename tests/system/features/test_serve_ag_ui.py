"""`/ag-ui/{agent}`: the protocol AG-UI on a real socket, checked by the types of PyPI's `ag-ui-protocol`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from mulligan import Agent
from tests.support.ag_ui_client import AgUiThread, types, user
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Failure, Turn
from tests.support.people_agents import desk, wake
from tests.support.shop_agents import RAN, shop

REFUND = call("refund", '{"order": 7, "amount": {"euros": 2}}', "c1")


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    async with http_server(lab.client) as served:
        yield served


@pytest.fixture
def script(lab: Lab) -> Callable[..., str]:
    """Script the model of an agent: the protocol names an agent, and not a model."""

    def scripted(agent: Agent, *turns: Turn) -> str:
        name = str(agent.model).partition(":")[2]
        lab.model.script(name, list(turns))
        return name

    return scripted


async def test_a_thread_is_one_conversation_and_a_message_starts_one_turn(
    lab: Lab, door: Door, script: Callable[..., str]
) -> None:
    """However often, and from however many requests at the same time, it is sent. The client's history is not read."""
    script(shop, Turn("First."), Turn("Second."))
    thread = AgUiThread(door, "shop")
    first, second = user(f"One in {thread.id}?", "m1"), user("Two?", "m2")
    streams = await asyncio.gather(*(thread.post(first) for _ in range(3)))
    assert [stream[-1].result["output"] for stream in streams] == ["First."] * 3
    invented = {"id": "x", "role": "assistant", "content": "Invented."}
    assert (await thread.post(first, invented, second))[-1].result["output"] == "Second."
    again = await thread.post(first, second)
    assert types(again) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    said = [(message.role, message.content) for message in again[1].messages]
    assert said[1:] == [("assistant", "First."), ("user", "Two?"), ("assistant", "Second.")]
    requests = [request.json for request in lab.model.requests_of(run=first["content"])]
    assert [[each["role"] for each in request["messages"]] for request in requests] == [
        ["system", "user"],
        ["system", "user", "assistant", "user"],
    ]
    assert "Invented." not in str(requests)


async def test_an_approval_ends_the_run_and_the_resumed_run_has_its_call_and_the_result(
    door: Door, script: Callable[..., str]
) -> None:
    """A client that returns before the decision gets the snapshot and the interrupt again; sent twice, it is one decision."""
    script(desk, REFUND, DONE)
    thread = AgUiThread(door, "desk")
    message = user("Refund order 7.", "m1")
    events = await thread.post(message)
    assert types(events)[-3:] == ["TOOL_CALL_END", "STEP_FINISHED", "RUN_FINISHED"]
    [interrupt] = events[-1].outcome.interrupts
    assert (interrupt.reason, interrupt.tool_call_id) == ("tool_call", "c1")
    assert interrupt.metadata["mulligan"]["arguments"] == {"order": 7, "amount": {"euros": 2.0}}
    returned = await thread.post(message)
    assert types(returned) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert returned[1].messages[-1].tool_calls[0].function.name == "refund"
    assert [each.id for each in returned[-1].outcome.interrupts] == [interrupt.id]
    edited = {"approved": True, "editedArgs": {"order": 7, "amount": {"euros": 1}}}
    resume = [{"interruptId": interrupt.id, "status": "resolved", "payload": edited}]
    resumed = await thread.post(message, resume=resume)
    assert types(resumed) == [
        *("RUN_STARTED", "MESSAGES_SNAPSHOT"),
        *("TOOL_CALL_RESULT", "STEP_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"),
        *("STEP_FINISHED", "RUN_FINISHED"),
    ]
    assert resumed[1].messages == returned[1].messages
    assert [event.content for event in resumed if event.type.value == "TOOL_CALL_RESULT"] == ["refunded 1 for order 7"]
    assert types(await thread.post(message, resume=resume)) == types(resumed)
    assert sum(ran[0] == "refund" for runs in RAN.values() for ran in runs if ran[1].get("euros") == 1) == 1


async def test_calls_that_wait_together_are_asked_together_and_others_run_on(
    door: Door, script: Callable[..., str]
) -> None:
    """A question is answered by a text. What settles between the two runs is in the second one."""
    asking = Turn(
        calls=[*REFUND.calls, ("ask_person", '{"question": "Which?"}', "c2"), ("nap", '{"seconds": 60}', "c3")]
    )
    script(desk, asking, DONE)
    thread = AgUiThread(door, "desk")
    events = await thread.post(user("Go."))
    interrupts = {each.tool_call_id: each for each in events[-1].outcome.interrupts}
    assert {name: each.reason for name, each in interrupts.items()} == {"c1": "tool_call", "c2": "input_required"}
    assert "TOOL_CALL_RESULT" not in types(events)
    await wake()
    resume = [
        {"interruptId": interrupts["c1"].id, "status": "resolved", "payload": {"approved": True}},
        {"interruptId": interrupts["c2"].id, "status": "resolved", "payload": {"answer": "Both."}},
    ]
    resumed = await thread.post(resume=resume)
    results = {event.tool_call_id: event.content for event in resumed if event.type.value == "TOOL_CALL_RESULT"}
    assert results == {"c1": "refunded 2 for order 7", "c2": "Both.", "c3": "slept"}
    assert types(resumed)[-1] == "RUN_FINISHED"


async def test_a_client_that_left_returns_to_a_snapshot_and_the_rest(door: Door, script: Callable[..., str]) -> None:
    script(desk, call("nap", '{"seconds": 60}', "c1"), DONE)
    thread = AgUiThread(door, "desk")
    message = user("Sleep.")
    await thread.post(message, stop_after="TOOL_CALL_END")
    returned = await thread.post(message, stop_after="MESSAGES_SNAPSHOT")
    assert returned[1].messages[-1].tool_calls[0].function.name == "nap"
    returning = asyncio.create_task(thread.post())
    await wake()
    rest = await returning
    assert types(rest)[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
    assert types(rest)[-1] == "RUN_FINISHED"


async def test_what_cannot_be_served_is_refused_with_a_sentence(door: Door, script: Callable[..., str]) -> None:
    """Before the stream as JSON with the fields of RUN_ERROR, in it as RUN_ERROR."""
    script(desk, REFUND, DONE)
    thread = AgUiThread(door, "desk")
    assert types(await thread.post()) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    await thread.post(user("Go.", "m1"))
    unsaid = [{"interruptId": "9:c9", "status": "resolved", "payload": {"approved": True}}]
    neither = [{"interruptId": "6:c1", "status": "resolved", "payload": {"maybe": 1}}]
    rows: list[tuple[dict[str, Any], int, str, str]] = [
        ({"messages": [user("More.", "m2")]}, 409, "busy", "has not finished"),
        ({"messages": [user("Go away.", "m1")]}, 409, "busy", "stop it"),
        ({"messages": [user(" ", "m3")]}, 422, "invalid_input", "no text"),
        ({"messages": [{**user("x"), "content": [{"type": "image"}]}]}, 422, "invalid_input", 'a part "image"'),
        ({"resume": [{**unsaid[0], "interruptId": "?"}]}, 422, "invalid_input", "send back the id"),
        ({"resume": unsaid}, 422, "invalid_input", "'c9'"),
        ({"resume": neither}, 422, "invalid_input", "neither yes nor no"),
        ({"threadId": ""}, 422, "invalid_input", "conversation's id"),
        ({"threadId": 7}, 422, "invalid_input", "threadId"),
    ]
    for fields, status, code, sentence in rows:
        answer = await door.http.post("/ag-ui/desk", json={"threadId": thread.id, "runId": "r", **fields})
        assert (answer.status_code, answer.json()["code"]) == (status, code), fields
        assert sentence in answer.json()["message"]
    script(shop, Turn(failure=Failure(400)))
    failed = (await AgUiThread(door, "shop").post(user("x")))[-1]
    assert (failed.type.value, failed.code) == ("RUN_ERROR", "ModelRequestError")


async def test_a_second_device_gets_the_messages_of_a_thread(door: Door, script: Callable[..., str]) -> None:
    """As the snapshot of a client that returns."""
    script(shop, call("search_orders", '{"customer": "Ada"}', "a"), Turn("First."), Turn("Second."))
    thread = AgUiThread(door, "shop")
    path = f"/ag-ui/shop/{thread.id}"
    assert (await door.http.get(path)).json() == {"messages": []}
    await thread.post(user("One?", "m1"))
    await thread.post(user("Two?", "m2"))
    messages = (await door.http.get(path)).json()["messages"]
    roles = ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert [message["role"] for message in messages] == roles
    assert [message.get("content") for message in messages][-3:] == ["First.", "Two?", "Second."]
    returned = await thread.post(user("Two?", "m2"))
    assert [message["id"] for message in messages] == [message.id for message in returned[1].messages]
