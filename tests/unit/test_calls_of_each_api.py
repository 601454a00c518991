"""The calls that a model reads of its earlier answers, in the requests of each API; without a server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from mulligan.worker.loading import load
from tests.promise.test_people import pending
from tests.support.calls_in_requests import CALLS, SENT, calls_in
from tests.support.lab import DONE, call
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn
from tests.support.shop_agents import RAN

APIS = ["openai-chat", "openai", "anthropic", "google"]


@pytest.fixture(scope="module")
async def lab(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load(["tests.support.shop_agents", "tests.support.people_agents"])) as at:
        yield at


@pytest.mark.parametrize("api", APIS)
async def test_each_provider_is_sent_the_calls_that_were_executed(lab: MemoryLab, api: str) -> None:
    """The next request, and those after it. The steps have what the model wrote."""
    ran = await lab.run([Turn(calls=CALLS), call("now"), DONE], api=api, max_steps=9)
    assert ran.result["status"] == "completed"
    for request, sent in zip(ran.requests, [[], SENT, [*SENT, ("now", {})]], strict=True):
        assert [*calls_in(request.json)] == sent
        assert "invalid_json" not in json.dumps(request.json)
    executed = [arguments.get("selector") for _, arguments in RAN[ran.id]]
    assert sorted(filter(None, executed)) == ["#a", "#b", "#c", "#d", "#g"]
    assert [made["raw_arguments"] for made in ran.calls[: len(CALLS)]] == [raw for _, raw in CALLS]


@pytest.mark.parametrize("api", APIS)
async def test_an_edited_call_is_sent_as_it_was_executed(lab: MemoryLab, api: str) -> None:
    """In the very next request, though the worker has the answer in its cache as the model wrote it."""
    written = '{"order": 7, "amount": {"euros": 12.5}}'
    handle = await lab.start([call("refund", written), call("discount", '{"percent": 5}'), DONE], agent="desk", api=api)
    (asked,) = await pending(handle)
    edited = {"order": 7, "amount": {"euros": 5.0}}
    await handle.execute_update("decide", {"call_id": asked["call_id"], "decision": "approve", "arguments": edited})
    ran = await lab.look(handle)
    assert ran.result["status"] == "completed"
    assert RAN[ran.id][0] == ("refund", {"order": 7, "euros": 5.0})
    assert [[*calls_in(request.json)] for request in ran.requests] == [
        [],
        [("refund", edited)],
        [("refund", edited), ("discount", {"percent": 5})],
    ]
    assert json.loads(ran.calls[0]["raw_arguments"]) == ran.calls[0]["decision"]["before"] == json.loads(written)
