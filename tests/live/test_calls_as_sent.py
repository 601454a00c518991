"""The calls that a model reads of its earlier answers, in real requests: as they were executed, and never in a form that is no JSON."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mulligan.client.resume_run import resume_run
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.live.conftest import DONE, Lab, call
from tests.live.test_people import pending
from tests.support.compaction_agents import PROMPT, READ, is_summing_up, reading
from tests.support.openai_turn import Turn
from tests.support.shop_agents import RAN

APIS = ["openai-chat", "openai", "anthropic", "google"]
CALLS = [
    ("click", "{'selector': '#a',}"),
    ("Click", '```json\n{"selector": "#b"}\n```'),
    ("click", '"#c"'),
    ("click", '{"element": "#d"}'),
    ("functions.now", "{}"),
    ("click", "{'selector': '#e"),
    ("clik", "{'selector': '#f'}"),
    ("click", '{"selector": "#g"}'),
]
SENT = [
    *(("click", {"selector": f"#{letter}"}) for letter in "abcd"),
    ("now", {}),
    ("click", {}),
    ("clik", {}),
    ("click", {"selector": "#g"}),
]


def calls_in(item: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and arguments of each call in a request, in the form of any API."""
    if isinstance(item, list):
        for each in item:
            yield from calls_in(each)
    if not isinstance(item, dict):
        return
    match item:
        case {"function": {"name": name, "arguments": str(arguments)}} | {
            "type": "function_call",
            "name": name,
            "arguments": str(arguments),
        }:
            yield name, json.loads(arguments)
        case {"type": "tool_use", "name": name, "input": dict(given)} | {
            "functionCall": {"name": name, "args": dict(given)}
        }:
            yield name, given
        case _:
            for name in ("messages", "input", "contents", "content", "parts", "tool_calls"):
                yield from calls_in(item.get(name))


@pytest.mark.parametrize("api", APIS)
async def test_each_provider_is_sent_the_calls_that_were_executed(lab: Lab, api: str) -> None:
    """The next request, those after it, and those of a run that resumes it. The steps have what the model wrote."""
    ran = await lab.run([Turn(calls=CALLS), call("now"), DONE], api=api, max_steps=2)
    assert ran.result["status"] == "max_steps"
    await lab.look(await resume_run(lab.client, ran.id, max_steps=9))
    requests = lab.model.requests_of(ran.id)
    for request, sent in zip(requests, [[], SENT, [*SENT, ("now", {})]], strict=True):
        assert [*calls_in(request.json)] == sent
        assert "invalid_json" not in json.dumps(request.json)
    executed = [arguments.get("selector") for _, arguments in RAN[ran.id]]
    assert sorted(filter(None, executed)) == ["#a", "#b", "#c", "#d", "#g"]
    steps = [(made["raw_arguments"], [repair["by"] for repair in made["repairs"]]) for made in ran.calls[: len(CALLS)]]
    assert [raw for raw, _ in steps] == [raw for _, raw in CALLS]
    assert [repairs for _, repairs in steps] == [
        ["json:single_quotes+trailing_commas"],
        ["name", "json:code_fence"],
        ["bare_value"],
        ["fix"],
        ["name"],
        [],
        [],
        [],
    ]
    texts = [made["result"]["text"] for made in ran.calls]
    assert "You sent: {'selector': '#e" in texts[5]
    assert "You sent: {'selector': '#f'}" in texts[6]
    assert "no tool `clik`" in texts[6]


@pytest.mark.parametrize("api", APIS)
async def test_an_edited_call_is_sent_as_it_was_executed(lab: Lab, api: str) -> None:
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


async def test_repaired_calls_stay_so_through_compactions_and_in_what_summaries_are_made_of(lab: Lab) -> None:
    queue, script = f"sent-{uuid.uuid4().hex[:6]}", reading(12)

    def spelled(request: dict[str, Any], nth: int) -> Turn:
        turn = script(request, nth)
        return replace(turn, calls=[(each[0], repr(json.loads(each[1]))) for each in turn.calls])

    async with running_worker(lab.client, load(["tests.support.compaction_agents"]), lab.telemetry, queue):
        at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
        ran = await at.run(spelled, agent="page_reader", prompt=PROMPT, max_steps=50)
    assert [number for number, _ in READ[ran.id]] == [*range(1, 13)]
    assert ran.result["repairs"] == 12
    assert sum(is_summing_up(request.json) for request in ran.requests) > 1
    for request in ran.requests:
        assert "{'number'" not in json.dumps(request.json)
        assert all(arguments.keys() == {"number"} for _, arguments in calls_in(request.json))
