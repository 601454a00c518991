"""Titles, tags and follow-up questions, which chat front ends ask `/v1` for by themselves, start none of the agent's tools."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.http_server import http_server
from tests.support.lab import Lab
from tests.support.openai_door_agents import MODEL, scripted
from tests.support.openai_turn import Turn
from tests.support.shop_agents import RAN
from tests.support.side_request_agents import SMALL
from tests.system.features.test_serve_openai import Served, sdk

FILE = f"""
[[request]]
prompt = "### Task:"
model = "openai-chat:{SMALL}"

[[request]]
header = "X-Chore: title"
agent = "titles"

[[request]]
header = "X-Chore: mistake"
agent = "listing"
"""
SEARCH = Turn(calls=[("search_orders", '{"customer": "Ada"}', "a")])


@pytest.fixture(scope="module")
async def served(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    queue = f"side-{uuid.uuid4().hex[:6]}"
    path: Path = tmp_path_factory.mktemp("side") / "side.toml"
    path.write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULLIGAN_SIDE_REQUESTS", str(path))
        options: dict[str, Any] = {"task_queue": queue, "tokens": "ada:token-of-ada,bob:token-of-bob:equipped"}
        async with (
            running_worker(lab.client, load(["tests.support.side_request_agents"]), lab.telemetry, queue),
            http_server(lab.client, **options) as door,
            sdk(door) as client,
            sdk(door, "token-of-bob") as other,
        ):
            yield Served(lab, door, client, other)


async def ask(client: Any, way: str, prompt: str, agent: str = "equipped", **headers: str) -> tuple[str, str]:
    """The run's id, and what a chat completion or a response says."""
    options: dict[str, Any] = {"model": agent, "extra_headers": {k.replace("_", "-"): v for k, v in headers.items()}}
    if way == "response":
        response = await client.responses.create(input=prompt, instructions="Be brief.", **options)
        return response.id, response.output_text
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]
    if way == "chat":
        done = await client.chat.completions.create(messages=messages, **options)
        return done.id, done.choices[0].message.content or ""
    chunks = [each async for each in await client.chat.completions.create(messages=messages, stream=True, **options)]
    return chunks[0].id, "".join(each.choices[0].delta.content or "" for each in chunks)


@pytest.mark.parametrize("way", ["chat", "stream", "response"])
async def test_a_model_alone_serves_what_begins_as_the_operator_says(served: Served, way: str) -> None:
    """In the name of the agent, also for a token of that agent only. The model cannot call its tools either."""
    prompt = f"### Task:\nWrite a title. {uuid.uuid4().hex}"
    served.lab.model.script(SMALL, scripted({prompt: [SEARCH, Turn("Orders of Ada")]}))
    run_id, text = await ask(served.other, way, prompt)
    assert text == "Orders of Ada"
    assert run_id not in RAN
    requests = served.lab.model.requests_of(SMALL, run=prompt)
    assert len(requests) == 2
    for each in requests:
        assert not {"tools", "response_format", "temperature"} & each.json.keys()
    assert [each["role"] for each in requests[0].conversation] == ["system", "user"]
    system = requests[0].conversation[0]["content"]
    assert ("Be brief." in system, "Sell something." in system) == (True, False)
    [told] = [each["content"] for each in requests[1].conversation if each["role"] == "tool"]
    assert "search_orders" in told
    run = (await served.door.http.get(f"/api/runs/{run_id}", headers=served.door.by("bob"))).json()
    assert (run["agent"], run["status"], run["result"]["recovered_failures"]) == ("equipped", "completed", 1)


@pytest.mark.parametrize("way", ["chat", "stream", "response"])
async def test_an_agent_without_tools_serves_what_has_the_header(served: Served, way: str) -> None:
    """A token of some agents needs that one among them."""
    prompt = f"Write a title. {uuid.uuid4().hex}"
    served.lab.model.script(SMALL, scripted({prompt: [Turn("Orders of Ada")]}))
    run_id, text = await ask(served.client, way, prompt, X_Chore="title")
    assert text == "Orders of Ada"
    [request] = served.lab.model.requests_of(SMALL, run=prompt)
    assert str(request.conversation[0]["content"]).startswith("Write titles.")
    run = (await served.door.http.get(f"/api/runs/{run_id}", headers=served.door.by("ada"))).json()
    assert run["agent"] == "titles"
    with pytest.raises(openai.NotFoundError, match="titles"):
        await ask(served.other, way, prompt, X_Chore="title")


async def test_a_model_alone_has_the_clients_instructions_whatever_the_agent_says_of_them(served: Served) -> None:
    """They say what it is to do."""
    prompt = f"### Task:\nWrite a title. {uuid.uuid4().hex}"
    served.lab.model.script(SMALL, scripted({prompt: [Turn("Orders of Ada")]}))
    assert (await ask(served.client, "chat", prompt, agent="refusing"))[1] == "Orders of Ada"
    [request] = served.lab.model.requests_of(SMALL, run=prompt)
    assert "Be brief." in str(request.conversation[0]["content"])
    with pytest.raises(openai.BadRequestError, match="are refused"):
        await ask(served.client, "chat", "Hello.", agent="refusing")


async def test_while_no_worker_answers_only_a_model_serves_a_side_request(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the agent has tools is not known then. Nothing is started; an SDK may send the request again."""
    path = tmp_path / "side.toml"
    path.write_text(FILE)
    monkeypatch.setenv("MULLIGAN_SIDE_REQUESTS", str(path))
    async with http_server(lab.client, task_queue=f"nobody-{uuid.uuid4().hex[:6]}") as door:
        messages = [{"role": "user", "content": "Write a title."}]
        body = {"model": "equipped", "messages": messages}
        refused = await door.http.post("/v1/chat/completions", json=body, headers={"X-Chore": "title"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_worker")
        accepted = {"model": "equipped", "input": "### Task:", "background": True}
        response = (await door.http.post("/v1/responses", json=accepted)).json()
        assert response["status"] == "queued"
        await lab.client.get_workflow_handle(response["id"]).terminate()


@pytest.mark.parametrize("way", ["chat", "response"])
async def test_an_agent_with_tools_is_refused(served: Served, way: str) -> None:
    """Also where a function returns them. No run is started."""
    with pytest.raises(openai.BadRequestError, match="'listing' has tools") as refused:
        await ask(served.client, way, "Write a title.", X_Chore="mistake")
    assert refused.value.code == "side_agent_has_tools"


@pytest.mark.parametrize("headers", [{}, {"X_Chore": "tags"}])
async def test_what_nobody_has_described_is_the_agents(served: Served, headers: dict[str, str]) -> None:
    prompt = f"Task: write a title. {uuid.uuid4().hex}"
    served.lab.model.script(MODEL, scripted({prompt: [SEARCH, Turn(calls=[("Label", '{"name": "blue"}', "l")])]}))
    run_id, text = await ask(served.client, "chat", prompt, **headers)
    assert text == '{"name": "blue"}'
    assert [name for name, _ in RAN[run_id]] == ["search_orders"]


async def test_a_continued_side_request_stays_without_tools(served: Served) -> None:
    prompt = f"### Task:\nWrite a title. {uuid.uuid4().hex}"
    served.lab.model.script(SMALL, scripted({prompt: [Turn("Orders"), SEARCH, Turn("Orders of Ada")]}))
    run_id, _ = await ask(served.client, "response", prompt)
    more = await served.client.responses.create(model="equipped", input="Longer.", previous_response_id=run_id)
    assert more.output_text == "Orders of Ada"
    assert more.id not in RAN
