"""Tools on demand on a real server: strict endpoints accept the requests."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan import connect, fork_run
from mulligan.devserver import DevServer
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.compaction_agents import PROMPT, finding, is_summing_up
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn

QUERY, CITY = '{"query": "weather of a city"}', '{"city": "Oslo"}'


@pytest.fixture(scope="module")
async def town(lab: Lab) -> AsyncIterator[Lab]:
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"town-{uuid.uuid4().hex[:6]}")
    async with running_worker(at.client, load(["tests.support.tool_search_agents"]), lab.telemetry, at.task_queue):
        yield at


@pytest.mark.parametrize("api", ["openai", "openai-chat", "anthropic", "google"])
async def test_what_was_found_is_called(town: Lab, api: str) -> None:
    turns = [call("find_tools", QUERY, "f1"), call("get_weather", CITY, "c1"), DONE]
    ran = await town.run(turns, agent="guide", api=api)
    results = [each["result"]["text"] for each in ran.calls]
    assert results[0].startswith('[{"name": "get_weather"')
    assert results[1:] == ["Rain in Oslo."]


async def test_a_sub_agent_is_found_and_run(town: Lab) -> None:
    town.model.script("packer", [Turn(text="Packed.")])
    turns = [
        call("find_tools", '{"query": "pack a suitcase"}', "f1"),
        call("packer", '{"prompt": "Pack."}', "c1"),
        DONE,
    ]
    ran = await town.run(turns, agent="leader")
    seen = [[tool["function"]["name"] for tool in request.json["tools"]] for request in ran.requests]
    assert seen == [["find_tools"], ["find_tools", "packer"], ["find_tools", "packer"]]
    assert ran.calls[1]["result"]["text"] == "Packed."
    assert ran.calls[1]["run"]["id"].startswith(ran.id)


async def test_what_a_recorded_search_has_found_is_there_in_the_fork(town: Lab) -> None:
    """In the order of the searches."""
    finds = [("find_tools", QUERY, "f1"), ("find_tools", '{"query": "trains of a station"}', "f2")]
    ran = await town.run([Turn(calls=finds), call("get_weather", CITY, "c1"), DONE], agent="guide")
    forked = await town.look(await fork_run(town.client, ran.id, at=1))
    assert [each["recorded"] for each in forked.calls] == [True] * 3
    sent = [request.json["tools"] for request in town.model.requests_of(ran.id)]
    assert [tool["function"]["name"] for tool in sent[1]] == ["find_tools", "get_weather", "get_trains"]
    assert sent[3:] == sent[:3]


async def test_the_found_tools_follow_an_edited_search(town: Lab) -> None:
    """The fork's model has the tools that the edited result names, and not those that the run has found."""
    ran = await town.run([call("find_tools", QUERY, "f1"), DONE], agent="guide")
    for result, names in (('[{"name": "get_trains"}]', ["get_trains"]), ("No tool fits.", [])):
        await (await fork_run(town.client, ran.id, at=2, edits={"results": {"f1": result}})).result()
        tools = town.model.requests_of(ran.id)[-1].json["tools"]
        assert [tool["function"]["name"] for tool in tools] == ["find_tools", *names]


async def test_what_was_found_is_still_there_after_continue_as_new(lab: Lab, chain_server: DevServer) -> None:
    """Also where a compaction has summarized the search and the calls."""
    client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"found-{uuid.uuid4().hex[:6]}")
    async with running_worker(client, load(["tests.support.compaction_agents"]), lab.telemetry, at.task_queue):
        ran = await at.run(finding(12), agent="page_finder", prompt=PROMPT)
    runs = [each async for each in client.list_workflows(f"WorkflowId = '{ran.id}'")]
    assert len(runs) > 1
    sent = [request.json for request in ran.requests if not is_summing_up(request.json)]
    tools = [[tool["function"]["name"] for tool in request["tools"]] for request in sent]
    assert tools == [["find_tools"], *[["find_tools", "close_book", "read_page"]] * 13]
    assert len(sent[-1]["messages"]) < len(sent)


async def test_what_a_summary_has_of_searches_is_there_beside_an_edited_one(town: Lab) -> None:
    """Of the search that is edited, the fork has what the edited result names."""
    read = finding(6)

    def script(body: dict[str, Any], nth: int) -> Turn:
        if "PAGE 6" in json.dumps(body["messages"]) and not is_summing_up(body):
            done = "second_find" in json.dumps(body["messages"])
            return DONE if done else Turn(calls=[("find_tools", '{"query": "close the book"}', "second_find")])
        return read(body, nth)

    async with running_worker(
        town.client, load(["tests.support.compaction_agents"]), town.telemetry, f"{town.task_queue}-pages"
    ):
        at = Lab(town.client, town.model, town.otlp, town.telemetry, f"{town.task_queue}-pages")
        ran = await at.run(script, agent="page_finder", prompt=PROMPT)
        assert any("compaction" in step for step in ran.steps)
        edits = {"results": {ran.calls[-1]["id"]: "No tool fits."}}
        await (await fork_run(at.client, ran.id, at=len(ran.steps), edits=edits)).result()
    sent = at.model.requests_of(ran.id)[-1].json
    assert "No tool fits." in json.dumps(sent)
    assert "first_find" not in json.dumps(sent)
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["find_tools", "close_book", "read_page"]
