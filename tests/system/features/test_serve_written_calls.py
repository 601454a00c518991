"""The arguments of calls while the model writes them: our own events, and those of each protocol."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from openai import AsyncOpenAI

from mulligan import Agent, events
from mulligan.run_view.run_view import RunView
from tests.live.conftest import DONE, Lab
from tests.support.ag_ui_client import EVENT
from tests.support.http_server import Door, http_server
from tests.support.openai_stream import Break
from tests.support.openai_turn import Turn
from tests.support.people_agents import desk
from tests.support.shop_agents import shop

ARGUMENTS = '{"customer": "Ada Lovelace of London", "limit": 5}'
REFUND = '{"order": 7, "amount": {"euros": 2}}'
BEGUN = 6
"""The number of a piece in the middle of the first call's arguments, where a text of two pieces comes before."""
Json = dict[str, Any]


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


def search(*gates: asyncio.Event, **options: Any) -> Turn:
    """An answer that stops in the middle of the arguments of its first call."""
    calls = [("search_orders", ARGUMENTS, "a"), ("now", "{}", "b")]
    return Turn("Let me look.", calls=calls, gates=dict(enumerate(gates, BEGUN)), **options)


async def stream(door: Door, url: str, body: Json) -> AsyncGenerator[Json]:
    """The events of a protocol's stream."""
    async with door.http.stream("POST", url, json=body, timeout=60) as response:
        assert response.status_code == 200, (await response.aread()).decode()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


async def read(door: Door, url: str, body: Json, gate: asyncio.Event, until: Callable[[Json], bool]) -> list[Json]:
    """All events. The model goes on once `until` says so of an event: it has come while the model was writing."""
    found = []
    async with aclosing(stream(door, url, body)) as sent:
        async for event in sent:
            found.append(event)
            if until(event):
                gate.set()
    return found


def ag_ui(text: str = "Go.") -> Json:
    message = {"id": uuid.uuid4().hex, "role": "user", "content": text}
    body = {"threadId": uuid.uuid4().hex, "runId": uuid.uuid4().hex, "messages": [message]}
    return {**body, "state": {}, "tools": [], "context": [], "forwardedProps": {}}


def ai_sdk(text: str = "Go.") -> Json:
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": f"chat-{uuid.uuid4().hex[:8]}", "messages": [message], "trigger": "submit-message"}


async def test_the_events_have_each_call_as_it_is_written_and_each_token_resumes_after_its_event(lab: Lab) -> None:
    """The names of the fields are those of docs/events.md; the whole is what the model has written."""
    gate = asyncio.Event()
    handle = await lab.start([search(gate, pace=0.01), DONE])
    found: list[events.Event] = []
    async for event in events.follow(lab.client, handle.id):
        found.append(event)
        if isinstance(event, events.ToolInputDelta) and event.text:
            gate.set()
    written = [event for event in found if isinstance(event, events.ToolInputDelta)]
    begun, piece = written[:2]
    assert begun.model_dump(exclude={"token", "at"}) == {
        **{"type": "tool_input_delta", "step": 1, "attempt": 1, "index": 0, "name": "search_orders"},
        **{"start": 0, "text": "", "call_id": "a"},
    }
    assert (piece.start, ARGUMENTS.startswith(piece.text)) == (0, True)
    assert all(ARGUMENTS[each.start :].startswith(each.text) for each in written if each.index == 0)
    assert found.index(begun) < next(place for place, each in enumerate(found) if each.type == "answered")
    assert len({event.token for event in found}) == len(found)


async def test_a_reader_that_resumes_within_arguments_gets_what_follows_and_no_piece_twice(
    lab: Lab, door: Door
) -> None:
    """From another replica, too."""
    gate = asyncio.Event()
    handle = await lab.start([search(gate), DONE])
    first: list[Any] = []
    async for frame in door.frames(handle.id):
        first.append(frame)
        if frame.event == "tool_input_delta" and frame.data["text"]:
            break
    async with http_server(lab.client) as other:
        rest: list[Any] = []
        gate.set()
        async for frame in other.frames(handle.id, first[-1].id):
            rest.append(frame)
    frames = [events.EVENT.validate_python(frame.data) for frame in [*first, *rest]]
    view = RunView.of(frames)
    assert view.steps[1].calls["a"].raw_arguments == ARGUMENTS
    pieces = [each for each in frames if isinstance(each, events.ToolInputDelta) and each.index == 0]
    places = [each.start for each in pieces]
    assert places == sorted(places)
    assert pieces[-1].start + len(pieces[-1].text) == sum(len(each.text) for each in pieces)


async def test_ag_ui_has_the_arguments_as_they_are_written(door: Door, script: Callable[..., None]) -> None:
    gate = asyncio.Event()
    script(shop, search(gate), DONE)
    found = await read(door, "/ag-ui/shop", ag_ui(), gate, lambda event: event["type"] == "TOOL_CALL_ARGS")
    for event in found:
        EVENT.validate_python(event)
    mine = [event for event in found if event.get("toolCallId") == "a"]
    assert "".join(event["delta"] for event in mine if event["type"] == "TOOL_CALL_ARGS") == ARGUMENTS
    kinds = [event["type"] for event in mine if event["type"] != "TOOL_CALL_ARGS"]
    assert kinds == ["TOOL_CALL_START", "TOOL_CALL_END", "TOOL_CALL_RESULT"]
    assert sum(event["type"] == "TOOL_CALL_START" for event in found) == 2


async def test_the_ai_sdk_has_the_arguments_as_they_are_written(door: Door, script: Callable[..., None]) -> None:
    gate = asyncio.Event()
    script(shop, search(gate), DONE)
    found = await read(door, "/ai-sdk/shop", ai_sdk(), gate, lambda event: event["type"] == "tool-input-delta")
    mine = [event for event in found if event.get("toolCallId") == "a"]
    assert "".join(event["inputTextDelta"] for event in mine if event["type"] == "tool-input-delta") == ARGUMENTS
    kinds = [event["type"] for event in mine if event["type"] != "tool-input-delta"]
    assert kinds == ["tool-input-start", "tool-input-available", "tool-output-available"]
    assert sum(event["type"] == "tool-input-start" for event in found) == 2


@pytest.fixture
async def openai(door: Door) -> AsyncIterator[Any]:
    async with AsyncOpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_responses_have_the_arguments_as_they_are_written(
    openai: Any, door: Door, script: Callable[..., None], lab: Lab
) -> None:
    """Each number resumes right after its event, on another replica too, and none is used twice."""
    gate, answered = asyncio.Event(), asyncio.Event()
    script(shop, search(gate, answered), DONE)
    found: list[Json] = []
    async with await openai.responses.create(model="shop", input=f"Go {uuid.uuid4()}.", stream=True) as sent:
        async for event in sent:
            found.append(event.model_dump(warnings=False))
            if event.type == "response.mcp_call_arguments.delta" and not gate.is_set():
                [response] = {each["response"]["id"] for each in found if each["type"] == "response.created"}
                async with (
                    http_server(lab.client) as replica,
                    AsyncOpenAI(base_url=f"{replica.url}/v1", api_key="none", max_retries=0) as again,
                ):
                    after = found[-1]["sequence_number"]
                    resumed = await again.responses.retrieve(response, stream=True, starting_after=after)
                    gate.set()
                    rest: list[Json] = []
                    async for each in resumed:
                        rest.append(each.model_dump(warnings=False))
                        answered.set()
    numbers = [event["sequence_number"] for event in found]
    assert numbers == sorted(set(numbers))
    output = found[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "mcp_call", "mcp_call", "message"]
    assert json.loads(output[1]["arguments"]) == json.loads(ARGUMENTS)
    added = {event["item"]["id"]: event["output_index"] for event in found if event["type"].endswith("item.added")}
    assert [added[item["id"]] for item in output] == [0, 1, 2, 3]
    place = next(n for n, each in enumerate(found) if each["sequence_number"] == after)
    for received in (found, [*found[: place + 1], *rest]):
        mine = [event for event in received if event.get("item_id") == output[1]["id"]]
        assert "".join(each["delta"] for each in mine if each["type"].endswith("arguments.delta")) == ARGUMENTS
        [done] = [each for each in mine if each["type"].endswith("arguments.done")]
        assert done["arguments"] == output[1]["arguments"]
        indexes = [each["output_index"] for each in received if each["type"] == "response.output_item.done"]
        assert sorted(indexes) == [0, 1, 2, 3]


async def test_chat_completions_have_nothing_of_a_call(openai: Any, script: Callable[..., None]) -> None:
    """Clients would run the call themselves."""
    gate = asyncio.Event()
    gate.set()
    script(shop, search(gate, pace=0.05), DONE)
    messages = [{"role": "user", "content": f"Go {uuid.uuid4()}."}]
    async with await openai.chat.completions.create(model="shop", messages=messages, stream=True) as sent:
        deltas = [choice.delta async for chunk in sent for choice in chunk.choices]
    assert not any(delta.tool_calls for delta in deltas)
    assert "".join(delta.content or "" for delta in deltas) == "Let me look.\n\ndone"


async def test_a_call_that_may_wait_is_written_in_our_own_events_only(
    lab: Lab, door: Door, script: Callable[..., None]
) -> None:
    """No protocol announces it before it is known whether it waits; nor the call of a tool that does not exist."""
    calls = [("refund", REFUND, "c1"), ("serch", ARGUMENTS, "c2"), ("ask_person", '{"question": "Which?"}', "c3")]
    asking = Turn(calls=calls, pace=0.05)
    handle = await lab.start([asking, DONE], agent="desk")
    async for event in events.follow(lab.client, handle.id):
        if isinstance(event, events.ToolInputDelta):
            assert event.may_wait
            if event.index == 1:
                break
        assert event.type != "answered"
    script(desk, asking, DONE)
    nothing = asyncio.Event()
    found = await read(door, "/ag-ui/desk", ag_ui(), nothing, lambda _: False)
    deltas = [event["delta"] for event in found if event["type"] == "TOOL_CALL_ARGS"]
    assert deltas == [arguments for _, arguments, _ in calls]
    script(desk, asking, DONE)
    found = await read(door, "/ai-sdk/desk", ai_sdk(), nothing, lambda _: False)
    deltas = [event["inputTextDelta"] for event in found if event["type"] == "tool-input-delta"]
    assert deltas == [arguments for _, arguments, _ in calls]
    script(desk, asking, DONE)
    sent = {"model": "desk", "input": f"Go {uuid.uuid4()}.", "stream": True}
    found = await read(door, "/v1/responses", sent, nothing, lambda _: False)
    deltas = [event["delta"] for event in found if event["type"] == "response.mcp_call_arguments.delta"]
    assert deltas == [ARGUMENTS]


@pytest.mark.parametrize("sdk", [7, 6])
async def test_an_announced_call_whose_attempt_is_void_is_closed_by_each_protocols_error(
    sdk: int, door: Door, script: Callable[..., None], openai: Any
) -> None:
    """And made again by the next attempt."""
    gate = asyncio.Event()
    calls = [("search_orders", ARGUMENTS, "a")]

    def broken() -> Turn:
        gate.clear()
        return Turn(calls=calls, break_first=[Break(after=4, wait=gate, drop=True)])

    script(shop, broken(), DONE)
    if sdk == 7:
        found = await read(door, "/ag-ui/shop", ag_ui(), gate, lambda event: event["type"] == "TOOL_CALL_ARGS")
        mine = [event for event in found if event.get("toolCallId") == "a" or event["type"] == "MESSAGES_SNAPSHOT"]
        kinds = [event["type"] for event in mine if event["type"] != "TOOL_CALL_ARGS"]
        made = ["TOOL_CALL_START", "TOOL_CALL_END", "TOOL_CALL_RESULT"]
        assert kinds == [*made, "MESSAGES_SNAPSHOT", *made]
        results = [event["content"] for event in mine if event["type"] == "TOOL_CALL_RESULT"]
        assert "not completed" in results[0]
        assert "Ada" in results[1]
        [snapshot] = [event["messages"] for event in mine if event["type"] == "MESSAGES_SNAPSHOT"]
        assert [message["role"] for message in snapshot] == ["user"]
        script(shop, broken(), DONE)
        sent = {"model": "shop", "input": f"Go {uuid.uuid4()}.", "stream": True}
        delta = "response.mcp_call_arguments.delta"
        found = await read(door, "/v1/responses", sent, gate, lambda event: event["type"] == delta)
        ended = [event["item"] for event in found if event["type"] == "response.output_item.done"]
        assert [item["status"] for item in ended] == ["failed", "completed", "completed"]
        assert [item["type"] for item in found[-1]["response"]["output"]] == ["mcp_call", "message"]
        assert [item["id"] for item in found[-1]["response"]["output"]] == [item["id"] for item in ended[1:]]
        assert len({item["id"] for item in ended}) == 3
        script(shop, broken(), DONE)
    url = f"/ai-sdk/shop?sdk={sdk}"
    found = await read(door, url, ai_sdk(), gate, lambda event: event["type"] == "tool-input-delta")
    closing = "reset-step" if sdk == 7 else "tool-output-error"
    kinds = [each["type"] for each in found if each["type"] in (closing, "tool-input-start", "tool-output-available")]
    assert kinds == ["tool-input-start", closing, "tool-input-start", "tool-output-available"]
