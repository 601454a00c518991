"""Forks by commands and over HTTP: what they answer, what they refuse, and who may edit."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mulligan.serve.caller import ANYBODY
from mulligan.serve.problems import Problem
from mulligan.serve.runs import Runs
from tests.support.app_command import app_command  # noqa: F401 - a fixture
from tests.support.http_server import Door, by, http_server
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn
from tests.support.shop_agents import RAN

ADA = '{"customer": "Ada"}'


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    async with http_server(lab.client, tokens="ops:s-1:*,ada:s-2,eve:s-3,clerk:s-4:desk") as served:
        yield served


async def test_the_command_fork_starts_a_run_and_show_says_where_it_comes_from(
    lab: Lab, command: Any, tmp_path: Path
) -> None:
    """With each edit; `--json` has the ids, and `--wait` the end."""
    ran = await lab.run([call("search_orders", ADA, "c1"), call("now", "{}", "c2"), DONE])
    (tmp_path / "calm.md").write_text("You are calm.")
    words = ["--at", "2", "--prompt", "Who?", "--message", "Hurry.", "--instructions", str(tmp_path / "calm.md")]
    code, out, _ = await command("fork", ran.id, *words, "--result", "c1=[]", "--id", f"{ran.id}-x", "--wait", "--json")
    started = json.loads(out)
    assert (code, started["id"], started["status"]) == (0, f"{ran.id}-x", "completed")
    sent = lab.model.requests_of(ran.id)[3].json["messages"]
    assert [each["content"] for each in sent if each["role"] != "assistant"] == [
        "You are calm.",
        "Who?",
        "[]",
        "Hurry.",
    ]
    _, out, _ = await command("show", started["id"], "--json")
    origin = {"id": ran.id, "run_id": ran.handle.first_execution_run_id, "step": 2}
    assert json.loads(out)["forked_from"] == origin
    _, out, _ = await command("show", started["id"])
    assert f"forked from {ran.id} at step 2" in out
    assert "(recorded)" in out
    assert [line.split()[1:3] for line in out.splitlines() if line.startswith("step ")][:2] == [
        ["1", "(shared)"],
        ["2"],
    ]
    code, out, _ = await command("fork", ran.id, "--json")
    assert (code, list(json.loads(out))) == (0, ["id", "run_id"])


async def test_a_run_shows_its_forks(lab: Lab, command: Any, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """By commands and over HTTP, to whoever may see them. Of ids that are longer than the attribute, the whole counts."""
    ran = await lab.run([call("now", "{}", "c1"), DONE], tenant="ada")
    forks = [f"{ran.id}-{'x' * 300}-{number}" for number in (1, 2)]
    for number, fork_id in enumerate(forks, 1):
        await command("fork", ran.id, "--at", str(number), "--id", fork_id, "--wait")
    below, other = [f"{ran.id}-below-{number}" for number in (1, 2)]
    for origin_id, fork_id in zip(forks, (below, other), strict=True):
        await command("fork", origin_id, "--id", fork_id, "--wait")
    while len(listed := json.loads((await command("list", "--forked-from", ran.id, "--json"))[1])) < len(forks):
        await asyncio.sleep(0.1)
    assert sorted(each["id"] for each in listed) == forks
    shown = json.loads((await command("show", ran.id, "--json"))[1])
    assert sorted(each["step"] for each in shown["forks"]) == [1, 2]
    assert "forks" not in json.loads((await command("show", below, "--json"))[1])
    _, out, _ = await command("show", ran.id)
    assert f"fork {forks[1]} at step 2: completed" in out.replace("\n", "")
    async with httpx2.AsyncClient(base_url=door.url, headers=by("s-2")) as ada:
        for origin_id in (forks[1], forks[0]):
            while not (page := (await ada.get("/api/runs", params={"forked_from": origin_id})).json())["runs"]:
                pass
        assert [each["id"] for each in page["runs"]] == [below]
        read = (await ada.get(f"/api/runs/{below}")).json()
    origin = {"id": forks[0], "step": 2}
    for fork in (page["runs"][0], read):
        assert fork["forked_from"].pop("run_id")
        assert fork["forked_from"] == origin
    monkeypatch.setattr("mulligan.client.find_runs.MOST_PAGES", 1)
    async with httpx2.AsyncClient(base_url=door.url, headers=by("s-3")) as eve:
        hidden = await eve.get("/api/runs", params={"forked_from": ran.id, "limit": 1})
        assert hidden.json() == {"runs": [], "next": None}, "a cursor would tell that there are some"
    begun = (await lab.client.get_workflow_handle(forks[0]).fetch_history()).events[0]
    assert "MulliganForkedFrom" in begun.workflow_execution_started_event_attributes.search_attributes.indexed_fields


async def test_the_command_refuses_with_a_sentence(lab: Lab, command: Any) -> None:
    ran = await lab.run([call("now", "{}", "c1"), DONE])
    cases = {
        ("--at", "7"): "There is no step 7: it has 2 steps.",
        ("--result", "c1"): "--result is 'c1'; give the call's id and its result",
        ("--result", "c1={"): "--result for 'c1' is not JSON",
        ("--result", "c1=7"): "is not of the result type of `now`: it should be of type string.",
        ("--result", "c7=7"): "There is no call 'c7'",
        ("--instructions", "/nowhere"): "--instructions: /nowhere: No such file",
        ("--id", ran.id): f"there is another run '{ran.id}' already",
        ("--tools", "live", "--at", "1"): "there is no terminal to confirm on; use --yes.",
        ("--unrecorded", "live"): "there is no terminal to confirm on; use --yes.",
        ("--model", "nonsense"): "the model is 'nonsense'; it must be one of",
    }
    for words, sentence in cases.items():
        code, out, err = await command("fork", ran.id, *words)
        assert (code, out) == (2, ""), words
        assert sentence in err.replace("\n", " ")
        assert "Traceback" not in err
    code, _, err = await command("fork", "nobody")
    assert (code, "There is no run 'nobody'" in err) == (2, True)


async def test_live_tools_are_listed_before_they_run(lab: Lab, command: Any) -> None:
    ran = await lab.run([call("now"), call("search_orders", ADA), DONE])
    _, _, err = await command("rerun", ran.id, "--tools", "live")
    assert "the run made 2 calls from this step on" in err
    assert 'step 2: search_orders {"customer": "Ada"}' in err
    _, _, err = await command("rerun", ran.id, "--unrecorded", "live")
    assert "the run made 2 calls from this step on, and only equal ones have records" in " ".join(err.split())
    _, out, _ = await command("rerun", "--help")
    assert "or else that of the agent today" in " ".join(out.replace("│", " ").split())
    code, out, _ = await command("rerun", ran.id, "--tools", "live", "--yes", "--wait", "--json")
    assert (code, RAN[json.loads(out)["id"]][0]) == (0, ("now", {}))


async def test_a_rerun_calls_no_tool_and_ends_where_it_diverges(lab: Lab, command: Any) -> None:
    ran = await lab.run([call("now"), DONE])
    code, out, _ = await command("rerun", ran.id, "--wait", "--json")
    assert (code, RAN[json.loads(out)["id"]]) == (0, [])
    lab.model.script(ran.id, [call("now"), call("search_orders", ADA), DONE])
    code, _, err = await command("rerun", ran.id, "--wait")
    assert code == 1
    assert 'Step 2 would have called `search_orders` with {"customer": "Ada"' in err.replace("\n", " ")


async def test_a_run_is_forked_over_http(lab: Lab, door: Door) -> None:
    """201, then 200 for the same request with an id or a key; the tenant stays."""
    ran = await lab.run([call("now", "{}", "c1"), DONE, Turn(text="more")], tenant="ada")
    path = f"/api/runs/{ran.id}/fork"
    posted = await door.http.post(path, json={"at": 1}, headers=by("s-2"))
    started = posted.json()
    assert (posted.status_code, sorted(started)) == (201, ["id", "run_id"])
    assert posted.headers["location"] == f"/api/runs/{started['id']}"
    assert (await lab.client.get_workflow_handle(started["id"]).result())["status"] == "completed"
    memo = await (await lab.client.get_workflow_handle(started["id"]).describe()).memo()
    assert (memo["tenant"], memo["forked_from"]["id"]) == ("ada", ran.id)
    for headers, body in (({"Idempotency-Key": "k"}, {}), ({}, {"id": f"{ran.id}-own"})):
        answers = [
            await door.http.post(path, json={**body, "at": 2}, headers={**by("s-2"), **headers}) for _ in range(2)
        ]
        assert [each.status_code for each in answers] == [201, 200]
        assert answers[0].json() == answers[1].json()
    other = await door.http.post(path, json={"at": 1}, headers={**by("s-2"), "Idempotency-Key": "k"})
    assert (other.status_code, other.json()["code"]) == (422, "key_reused")
    async with httpx2.AsyncClient(base_url=door.url, timeout=30) as browser:
        await browser.post("/console/sign-in", data={"token": "s-2", "next": "/"})
        page = (await browser.get(f"/console/runs/{started['id']}")).text
    assert f'forked from <a href="/console/runs/{ran.id}">{ran.id}</a> at step 1' in page
    asked = {"message": "And?"}
    branch = await door.http.post(path, json={"at": 2, "edits": asked}, headers=by("s-2"))
    result = await lab.client.get_workflow_handle(branch.json()["id"]).result()
    assert result["status"] == "completed"


async def test_who_may_fork_and_edit_over_http(lab: Lab, door: Door) -> None:
    """What changes the agent or what has happened is for operators; another tenant sees no run."""
    ran = await lab.run([call("now", "{}", "c1"), DONE], tenant="ada")
    path = f"/api/runs/{ran.id}/fork"
    for_operators: list[dict[str, Any]] = [
        {"edits": {"instructions": "Be."}},
        {"edits": {"model": "scripted:demo"}},
        {"edits": {"results": {"c1": "x"}}},
        {"tools": "live"},
        {"unrecorded": "live"},
    ]
    for body in for_operators:
        refused = await door.http.post(path, json=body, headers=by("s-2"))
        assert (refused.status_code, refused.json()["code"]) == (403, "operators_only"), body
    allowed = await door.http.post(path, json={"at": 1, "tools": "live"}, headers=by("s-1"))
    assert allowed.status_code == 201
    for token in ("s-3", "s-4"):
        assert (await door.http.post(path, json={}, headers=by(token))).status_code == 404
    cases: list[tuple[Any, int, str]] = [
        ({"at": 9}, 422, "There is no step 9"),
        ({"at": "x"}, 422, "at"),
        ({"edits": {"promt": 1}}, 422, "promt"),
        ({"edits": {"message": ""}}, 422, "'edits.message' is empty"),
        ({"edits": {"model": "nobody:x"}}, 422, "the model is 'nobody:x'"),
        ({"id": f"{ran.id}-resumed"}, 422, "id"),
        ([1], 422, "must be an object"),
    ]
    for body, status, sentence in cases:
        refused = await door.http.post(path, json=body, headers=by("s-2"))
        assert refused.status_code == status, refused.text
        assert sentence in refused.json()["detail"]
        assert refused.headers["content-type"] == "application/problem+json"
    forged = {"agent": "shop", "prompt": "x", "forked_from": {"workflow_id": "a", "run_id": "b", "step": 1}}
    refused = await door.http.post("/api/runs", json=forged, headers=by("s-2"))
    assert (refused.status_code, '"forked_from" is set by Mulligan alone' in refused.json()["detail"]) == (422, True)


async def test_a_workflow_without_a_single_agent_is_not_for_a_caller_of_some_agents(lab: Lab) -> None:
    """The sentence says so, and names no agent."""
    run_id = f"two-{uuid.uuid4().hex[:6]}"
    lab.model.script(run_id, [DONE, DONE])
    started = await lab.client.start_workflow("TwoTurns", [f"openai-chat:{run_id}"] * 2, id=run_id, task_queue="agents")
    await started.result()
    caller = replace(ANYBODY, agents=frozenset({"shop"}))
    runs = Runs(lab.client, "agents")
    for refused in (runs.fork(caller, run_id, {}), runs.resume(caller, run_id, {})):
        with pytest.raises(Problem, match="has no single agent") as problem:
            await refused
        assert (problem.value.status, problem.value.code) == (404, "agent_not_found")
