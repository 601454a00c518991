"""`mulligan serve`: the protocol `/api` on a real socket, a real Temporal server and a real worker."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from mulligan import events
from mulligan.client import read_agents
from tests.support.content_files import png
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    async with http_server(lab.client) as served:
        yield served


def script(lab: Lab, *turns: Turn) -> dict[str, str]:
    """The id, agent and prompt of a run whose model answers by these turns."""
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    lab.model.script(run_id, list(turns))
    return {"id": run_id, "agent": "shop", "prompt": "Go.", "model": f"openai-chat:{run_id}"}


async def test_the_same_start_again_is_the_same_run_and_another_input_is_a_conflict(lab: Lab, door: Door) -> None:
    """201, then 200; 409 for another input. After the run has ended, too."""
    run = script(lab, DONE)
    answers = [await door.http.post("/api/runs", json=run) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200]
    assert [answer.json() for answer in answers] == [{"id": run["id"]}] * 2
    assert answers[0].headers["location"] == f"/api/runs/{run['id']}"
    read = (await door.http.get(f"/api/runs/{run['id']}?wait=30")).json()
    assert (read["status"], read["agent"], read["result"]["output"]) == ("completed", "shop", "done")
    assert (await door.http.post("/api/runs", json=run)).status_code == 200
    other = await door.http.post("/api/runs", json={**run, "prompt": "Go away."})
    assert other.status_code == 409
    assert other.headers["content-type"] == "application/problem+json"
    assert other.json()["code"] == "id_taken"
    assert len(lab.model.requests_of(run["id"])) == 1


async def test_each_id_of_a_stream_is_unique_and_resumes_right_after_its_event(lab: Lab, door: Door) -> None:
    """With a JSON page, too."""
    turns = [Turn("Let me look.", calls=[("search_orders", "{'customer': 'Ada',}", "a"), ("serch_orders", "{}", "b")])]
    run = script(lab, *turns, call("click", '{"element": "#go"}', "c"), DONE)
    assert (await door.http.post("/api/runs", json=run)).status_code == 201
    frames = [frame async for frame in door.frames(run["id"])]
    assert [frame.event for frame in frames][-1] == "run_ended"
    stored = [event async for event in events.follow(lab.client, run["id"])]
    assert [frame.data for frame in frames if "offset" in frame.data] == [
        event.model_dump(mode="json") for event in stored if "offset" in event.model_fields_set
    ]
    assert len({frame.id for frame in frames}) == len(frames)
    for place, frame in enumerate(frames[:-1]):
        assert frame.id == frame.data["token"]
        again = [each async for each in door.frames(run["id"], frame.id or "")]
        # What a model or a call is writing is for those who watch it: a stream after the end has what is stored.
        assert [each.id for each in again] == [each.id for each in frames[place + 1 :] if "offset" in each.data]
    at_end = await door.http.get(
        f"/api/runs/{run['id']}/events", headers={"Accept": "text/event-stream", "Last-Event-ID": frames[-1].id or ""}
    )
    assert at_end.status_code == 204
    page = (await door.http.get(f"/api/runs/{run['id']}/events?limit=3")).json()
    rest = (await door.http.get(f"/api/runs/{run['id']}/events?since={page['next']}")).json()
    assert [*page["events"], *rest["events"]] == [event.model_dump(mode="json") for event in stored]
    assert (len(page["events"]), page["complete"], rest["complete"]) == (3, False, True)


async def test_people_reach_a_run_over_http(lab: Lab, door: Door) -> None:
    """A message, a decision, an answer, a stop, a cancellation, a resume; `pending` shows what waits."""
    asking = Turn(calls=[("refund", '{"order": 7, "amount": {"euros": 2}}', "c1")])
    run = {**script(lab, asking, call("ask_person", '{"question": "Which?"}', "c2"), DONE, DONE), "agent": "desk"}
    assert (await door.http.post("/api/runs", json=run)).status_code == 201
    path = f"/api/runs/{run['id']}"
    assert [call["call_id"] for call in await pending(door, path)] == ["c1"]
    refused = await door.http.post(f"{path}/decisions", json={"call_id": "c9", "decision": "approve"})
    assert (refused.status_code, refused.json()["code"]) == (409, "refused")
    assert "c1" in refused.json()["detail"]
    decision = {"call_id": "c1", "decision": "approve", "by": "Ada"}
    assert (await door.http.post(f"{path}/decisions", json=decision)).json()["accepted"] is True
    assert [call["kind"] for call in await pending(door, path)] == ["question"]
    message = await door.http.post(f"{path}/messages", json={"text": "Hurry.", "id": "m1"})
    assert message.json() == {"accepted": True, "id": "m1"}
    assert (await door.http.post(f"{path}/answers", json={"call_id": "c2", "text": "Both."})).status_code == 200
    read = (await door.http.get(f"{path}?wait=30")).json()
    assert read["status"] == "completed"
    steps = (await door.http.get(f"{path}/steps")).json()["steps"]
    assert steps[0]["tool_calls"][0]["decision"]["by"] == "Ada"
    messages = (await door.http.get(f"{path}/messages?since=1")).json()["messages"]
    assert "Hurry." in [each["text"] for each in messages]
    assert (await door.http.post(f"{path}/stop")).json()["code"] == "run_ended"
    needs_prompt = await door.http.post(f"{path}/resume")
    assert (needs_prompt.status_code, needs_prompt.json()["code"]) == (422, "prompt_needed")
    resumed = [await door.http.post(f"{path}/resume", json={"prompt": "And now?"}) for _ in range(2)]
    assert [each.status_code for each in resumed] == [201, 200]
    assert resumed[0].json() == resumed[1].json() == {"id": f"{run['id']}-resumed"}


async def test_a_message_of_parts_needs_no_text_beside_them(lab: Lab, door: Door) -> None:
    run = {**script(lab, call("ask_person", '{"question": "Which?"}', "c1"), DONE, DONE), "agent": "desk"}
    await door.http.post("/api/runs", json=run)
    path = f"/api/runs/{run['id']}"
    await pending(door, path)
    text, image = {"type": "text", "text": "This one."}, {"type": "image", "data": base64.b64encode(png(500)).decode()}
    for content in ([text], [text, image]):
        sent = await door.http.post(f"{path}/messages", json={"content": content})
        assert (sent.status_code, sent.json().get("accepted")) == (200, True), sent.text
    assert (await door.http.post(f"{path}/messages", json={"content": []})).status_code == 422
    assert (await door.http.post(f"{path}/answers", json={"call_id": "c1", "text": "Red."})).status_code == 200
    assert (await door.http.get(f"{path}?wait=30")).json()["status"] == "completed"
    messages = (await door.http.get(f"{path}/messages")).json()["messages"]
    assert [each["text"] for each in messages if each["role"] == "user"] == ["Go.", "This one.", "This one."]
    assert [each["type"] for each in messages[-2]["content"]] == ["text", "image"]


@pytest.mark.parametrize(("how", "status"), [("stop", "stopped"), ("cancel", "cancelled")])
async def test_a_run_is_stopped_and_cancelled_over_http(lab: Lab, door: Door, how: str, status: str) -> None:
    run = {**script(lab, call("ask_person", '{"question": "Which?"}', "c1"), DONE), "agent": "desk"}
    await door.http.post("/api/runs", json=run)
    path = f"/api/runs/{run['id']}"
    await pending(door, path)
    assert (await door.http.post(f"{path}/{how}")).json() == {"accepted": True}
    read = (await door.http.get(f"{path}?wait=30")).json()
    assert read["status"] == status


async def test_the_agents_are_those_that_the_workers_serve(
    lab: Lab, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a run of another agent is refused at once, with the names of those that there are."""
    listed = {agent["name"]: agent for agent in (await door.http.get("/api/agents")).json()}
    assert {"shop", "desk"} <= set(listed)
    assert "customer" in listed["shop"]["tools"][0]["parameters"]["properties"]
    assert all("source" not in agent for agent in listed.values())  # a path of the worker's machine
    refused = await door.http.post("/api/runs", json={"agent": "shopp", "prompt": "Go."})
    assert (refused.status_code, refused.json()["code"]) == (404, "agent_not_found")
    assert "desk" in refused.json()["detail"]
    monkeypatch.setattr(read_agents, "WORKER_TIMEOUT", timedelta(seconds=1))
    async with http_server(lab.client, task_queue="nobody-polls") as alone:
        assert (await alone.http.get("/api/agents")).json()["code"] == "no_worker"
        assert (await alone.http.post("/api/runs", json={"agent": "shop", "prompt": "Go."})).status_code == 201


async def pending(door: Door, path: str) -> list[dict[str, Any]]:
    """The waiting calls of a run, once there are some."""
    while True:
        waiting: list[dict[str, Any]] = (await door.http.get(f"{path}/pending")).json()
        if waiting:
            return waiting
        await asyncio.sleep(0.1)
