"""A token of some agents sees the runs of these, and what is below them: nothing of their runs below those of other agents."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.live.conftest import Lab
from tests.support.http_server import Door, http_server
from tests.support.served_routes import SERVED_ROUTES

QUEUE = "restricted"
TOKENS = {"clerk": "token-1", "chief": "token-2", "all": "token-3", "other": "token-4"}
SERVED = "ada:token-1:team_clerk,ada:token-2:team_chief,ada:token-3,bob:token-4:team_clerk"
READS = sorted({route.path for name, route in SERVED_ROUTES.items() if name.startswith("GET ")})


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    loaded = load(["tests.acceptance.asking_team"])
    async with (
        running_worker(lab.client, loaded, lab.telemetry, QUEUE),
        http_server(lab.client, tokens=SERVED, task_queue=QUEUE) as served,
    ):
        served.tokens = TOKENS
        yield served


@pytest.fixture(scope="module")
async def sub_run(lab: Lab, door: Door) -> str:
    """The run of a `team_clerk`, two levels below one of a `team_chief`. It waits for a person."""
    root = f"run-{uuid.uuid4().hex[:8]}"
    body = {"id": root, "agent": "team_chief", "prompt": "Go."}
    assert (await door.http.post("/api/runs", json=body, headers=door.by("all"))).status_code == 201
    while not (calls := (await door.http.get(f"/api/runs/{root}/pending", headers=door.by("all"))).json()):
        await asyncio.sleep(0.05)
    found: str = calls[0]["id"]
    assert found.startswith(f"{root}/")
    while found not in (await read(door, "all", "/api/runs", found))[1]:  # visibility is a little late
        await asyncio.sleep(0.05)
    return found


async def read(door: Door, name: str, route: str, run_id: str) -> tuple[int, str]:
    """The status and the text of a route that is asked for everything it has of a run."""
    values = {"agent": "team_clerk", "name": "team_clerk", "action": "stop"}
    path = re.sub(r"\{(\w+)(?::path)?\}", lambda match: quote(values.get(match[1], run_id), safe=""), route)
    asked = {"sub_agents": "true", "limit": "900", "step": "1", "id": run_id}
    async with door.http.stream("GET", path, params=asked, headers=door.by(name)) as answer:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer.status_code, run_id
        return answer.status_code, (await answer.aread()).decode()


@pytest.mark.parametrize("route", READS)
async def test_a_run_below_another_agents_run_is_nowhere(door: Door, sub_run: str, route: str) -> None:
    for name in ("clerk", "other"):
        status, text = await read(door, name, route, sub_run)
        is_of_run = re.search(r"\{(run|response)_id", route) is not None
        assert status == 404 if is_of_run else status < 500
        assert "refund_7" not in text
        shown = text.replace(f'value="{sub_run}"', "").replace(quote(sub_run, safe=""), "")  # what was asked for
        assert status == 404 or sub_run not in shown


@pytest.mark.parametrize("name", ["chief", "all"])
async def test_who_sees_the_run_at_the_top_sees_those_below_it(door: Door, sub_run: str, name: str) -> None:
    for route in ("/api/runs", "/api/runs/{run_id:path}", "/console/decide", "/", "/console/runs/{run_id:path}"):
        status, text = await read(door, name, route, sub_run)
        assert (status, sub_run in text) == (200, True), route


async def test_a_call_that_cannot_be_seen_cannot_be_decided(door: Door, sub_run: str) -> None:
    decision = {"call_id": "refund_7", "decision": "approve"}
    path = f"/api/runs/{sub_run}/decisions"
    refused = await door.http.post(path, json=decision, headers=door.by("clerk"))
    assert (refused.status_code, refused.json()["code"]) == (404, "run_not_found")
    form = {"run": sub_run, "call_id": "refund_7", "action": "approve"}
    assert (await door.http.post("/console/decide", data=form, headers=door.by("clerk"))).status_code == 404
    assert (await door.http.post(path, json=decision, headers=door.by("chief"))).status_code == 200
