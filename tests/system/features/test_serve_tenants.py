"""Tenants: the name of a token is the tenant of its runs, and nobody else's runs can be seen."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan.client.start_run import read_input
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn

TOKENS = "ada:token-of-ada,bob:token-of-bob,carl:token-of-carl:desk,root:token-of-root:*"


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    async with http_server(lab.client, tokens=TOKENS) as served:
        yield served


async def start(lab: Lab, door: Door, caller: str, *turns: Turn, **fields: Any) -> tuple[int, dict[str, Any], str]:
    """Start a run; returns the status, the body and the id."""
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    lab.model.script(run_id, list(turns) or [DONE])
    run = {"id": run_id, "agent": "shop", "prompt": "Go.", "model": f"openai-chat:{run_id}", **fields}
    answer = await door.http.post("/api/runs", json=run, headers=door.by(caller))
    return answer.status_code, answer.json(), run_id


READS = ("", "/steps", "/messages", "/pending", "/events")
CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/messages", {"text": "x"}),
    ("/decisions", {"call_id": "c1", "decision": "approve"}),
    ("/answers", {"call_id": "c1", "text": "x"}),
    ("/stop", {}),
    ("/cancel", {}),
    ("/resume", {}),
)


async def test_runs_of_another_tenant_look_like_runs_that_do_not_exist(lab: Lab, door: Door) -> None:
    """To read, watch, decide, stop or resume; its own tenant and an operator see them. Nothing reaches the run."""
    asking = call("refund", '{"order": 7, "amount": {"euros": 2}}', "c1")
    status, _, run_id = await start(lab, door, "ada", asking, agent="desk")
    assert status == 201
    path = f"/api/runs/{run_id}"
    for who, expected in (("bob", 404), ("carl", 404), ("ada", 200), ("root", 200)):
        for read in READS:
            answer = await door.http.get(path + read, headers=door.by(who))
            assert answer.status_code == expected, (who, read, answer.text)
            if expected == 404:
                nothing = await door.http.get(f"/api/runs/none{read}", headers=door.by(who))
                assert answer.json()["detail"] == nothing.json()["detail"].replace("none", run_id)
    for change, body in CHANGES:
        answer = await door.http.post(path + change, json=body, headers=door.by("bob"))
        assert (answer.status_code, answer.json()["code"]) == (404, "run_not_found")
    streaming = {**door.by("bob"), "Accept": "text/event-stream"}
    assert (await door.http.get(f"{path}/events", headers=streaming)).status_code == 404
    assert (await door.http.get(path, headers=door.by("ada"))).json()["status"] == "waiting"
    decision = {"call_id": "c1", "decision": "deny", "by": "somebody else"}
    decided = await door.http.post(f"{path}/decisions", json=decision, headers=door.by("root"))
    assert decided.status_code == 200
    steps = (await door.http.get(f"{path}/steps", headers=door.by("ada"))).json()["steps"]
    assert steps[0]["tool_calls"][0]["decision"]["by"] == "root"
    await door.http.post(f"{path}/cancel", headers=door.by("ada"))


async def test_the_tenant_is_the_fairness_key_of_the_run_and_its_activities_and_on_no_span(
    lab: Lab, door: Door
) -> None:
    status, _, run_id = await start(lab, door, "ada", call("search_orders", '{"customer": "Ada"}'), DONE, priority=2)
    assert status == 201
    read = (await door.http.get(f"/api/runs/{run_id}?wait=30", headers=door.by("ada"))).json()
    assert (read["tenant"], read["status"]) == ("ada", "completed")
    handle = lab.client.get_workflow_handle(run_id)
    described = await handle.describe()
    assert described.raw_description.workflow_execution_info.priority.fairness_key == "ada"
    scheduled = [
        event.activity_task_scheduled_event_attributes
        for event in (await handle.fetch_history()).events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert len(scheduled) >= 4
    assert {(each.priority.fairness_key, each.priority.priority_key) for each in scheduled} == {("ada", 2)}
    seen = [span for span in lab.otlp.spans() if span.attributes.get("temporal.workflow_id") == run_id]
    assert seen
    assert not [value for span in seen for value in span.attributes.values() if value == "ada"]


async def test_a_token_starts_runs_of_its_agents_in_its_tenant_only(lab: Lab, door: Door) -> None:
    status, refused, _ = await start(lab, door, "carl")
    assert (status, refused["code"]) == (404, "agent_not_found")
    assert "desk" in refused["detail"]
    assert "shop" not in refused["detail"].replace("'shop'", "")
    status, refused, _ = await start(lab, door, "bob", tenant="ada")
    assert (status, refused["code"]) == (403, "foreign_tenant")
    status, _, run_id = await start(
        lab, door, "bob", metadata={"tenant": "ada"}
    )  # the run's own, and of no meaning here
    assert status == 201
    assert (await door.http.get(f"/api/runs/{run_id}", headers=door.by("ada"))).status_code == 404
    status, _, run_id = await start(lab, door, "root", tenant="bob")
    assert status == 201
    assert (await door.http.get(f"/api/runs/{run_id}", headers=door.by("bob"))).json()["tenant"] == "bob"
    agents = (await door.http.get("/api/agents", headers=door.by("carl"))).json()
    assert [agent["name"] for agent in agents] == ["desk"]


async def user_of(lab: Lab, run_id: str) -> str | None:
    given = await read_input(lab.client, run_id)
    assert given is not None
    return given.user


async def test_the_user_of_a_run_is_the_header_or_the_name_of_the_token(lab: Lab, door: Door) -> None:
    """Of a continuation too; an operator's works for whom the run did. Only an operator names another one in the body."""

    async def post(path: str, caller: str, says: str | None, **body: Any) -> tuple[int, dict[str, Any]]:
        headers: list[tuple[bytes, bytes]] = [
            (name.encode(), value.encode()) for name, value in door.by(caller).items()
        ]
        headers += [] if says is None else [(b"Mulligan-User", says.encode()), (b"Mulligan-Trusted", b"true")]
        answer = await door.http.post(path, json=body, headers=headers)
        return answer.status_code, answer.json()

    for user, expected in ((None, "ada"), ("Zoë", "Zoë"), ("u" * 128, "u" * 128)):
        run_id = f"run-{uuid.uuid4().hex[:8]}"
        lab.model.script(run_id, [DONE, DONE, DONE])
        run = {"agent": "shop", "prompt": "Go.", "model": f"openai-chat:{run_id}"}
        status, _ = await post("/api/runs", "ada", user, id=run_id, **run)
        assert (status, await user_of(lab, run_id)) == (201, expected)
    await door.http.get(f"/api/runs/{run_id}?wait=30", headers=door.by("ada"))
    status, again = await post(f"/api/runs/{run_id}/resume", "root", None, prompt="More.")
    assert (status, await user_of(lab, again["id"])) == (201, "u" * 128)
    await door.http.get(f"/api/runs/{again['id']}?wait=30", headers=door.by("ada"))
    status, third = await post(f"/api/runs/{again['id']}/resume", "ada", "Bea", prompt="More.")
    assert (status, await user_of(lab, third["id"])) == (201, "Bea")
    same = await post(f"/api/runs/{again['id']}/resume", "ada", None, prompt="More.")
    assert same == (200, third)
    for bad in ("u" * 129, ""):
        status, refused = await post("/api/runs", "ada", bad, **run)
        assert (status, refused["code"]) == (400, "invalid_user")
    status, refused = await post("/api/runs", "ada", None, user="Bea", **run)
    assert (status, refused["code"]) == (403, "foreign_user")
    status, started = await post("/api/runs", "root", None, user="Bea", tenant="ada", **run)
    assert (status, await user_of(lab, started["id"])) == (201, "Bea")


async def test_lists_are_filtered_by_tenant_agent_status_and_time_and_paged(lab: Lab, door: Door) -> None:
    """Each run is on exactly one page."""
    mine = [(await start(lab, door, "bob"))[2] for _ in range(5)]
    await start(lab, door, "ada")
    for run_id in mine:
        await door.http.get(f"/api/runs/{run_id}?wait=30", headers=door.by("bob"))
    started = (await door.http.get(f"/api/runs/{mine[2]}", headers=door.by("bob"))).json()["started"]

    async def ids(who: str, wanted: int, **query: Any) -> list[str]:
        """All pages of two; visibility may lag behind."""
        for _ in range(100):
            found: list[str] = []
            cursor: str | None = ""
            while cursor is not None:
                asked = {"limit": 2, **query, **({"cursor": cursor} if cursor else {})}
                page = (await door.http.get("/api/runs", params=asked, headers=door.by(who))).json()
                assert len(page["runs"]) <= 2
                assert {run["tenant"] for run in page["runs"]} <= {who} or who == "root"
                found += [run["id"] for run in page["runs"] if run["id"] in mine]
                cursor = page["next"]
            if len(found) >= wanted:
                break
        return found

    assert sorted(await ids("bob", 5)) == sorted(mine)
    assert sorted(await ids("root", 5, tenant="bob", agent="shop", status="completed")) == sorted(mine)
    assert await ids("bob", 0, agent="desk") == []
    assert await ids("bob", 0, status="failed") == []
    assert await ids("ada", 0) == []
    assert sorted(await ids("bob", 3, since=started)) == sorted(mine[2:])
    assert sorted(await ids("bob", 2, until=started)) == sorted(mine[:2])


async def test_a_resumed_run_never_takes_the_id_of_another_run_that_has_ended(lab: Lab, door: Door) -> None:
    """That run would no longer be found, in whosever tenant it is. The same request again is the same run."""
    _, _, theirs = await start(lab, door, "ada")
    _, _, mine = await start(lab, door, "bob", DONE, DONE)
    for who, run_id in (("ada", theirs), ("bob", mine)):
        read = await door.http.get(f"/api/runs/{run_id}?wait=30", headers=door.by(who))
        assert read.json()["status"] == "completed"
    path = f"/api/runs/{mine}/resume"
    taken = await door.http.post(path, json={"prompt": "Go on.", "id": theirs}, headers=door.by("bob"))
    assert (taken.status_code, taken.json().get("code")) == (409, "id_taken")
    assert (await door.http.get(f"/api/runs/{theirs}", headers=door.by("ada"))).json()["status"] == "completed"
    for status in (201, 200):
        again = await door.http.post(path, json={"prompt": "Go on.", "id": f"{mine}-2"}, headers=door.by("bob"))
        assert again.status_code == status
        await door.http.get(f"/api/runs/{mine}-2?wait=30", headers=door.by("bob"))
