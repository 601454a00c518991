"""The arguments of calls while the model writes them: our own events and those of a response, and resuming within them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from openai import AsyncOpenAI

from mulligan import Agent, events
from mulligan.run_view.run_view import RunView
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab
from tests.support.openai_turn import Turn
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


async def test_the_events_say_of_a_call_that_it_may_wait(lab: Lab) -> None:
    """No protocol announces it before it is known whether it waits; nor the call of a tool that does not exist."""
    calls = [("refund", REFUND, "c1"), ("serch", ARGUMENTS, "c2"), ("ask_person", '{"question": "Which?"}', "c3")]
    handle = await lab.start([Turn(calls=calls, pace=0.05), DONE], agent="desk")
    async for event in events.follow(lab.client, handle.id):
        if isinstance(event, events.ToolInputDelta):
            assert event.may_wait
            if event.index == 1:
                break
        assert event.type != "answered"
