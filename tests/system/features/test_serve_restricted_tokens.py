"""A token of some agents sees the runs of these, and what is below them: nothing of their runs below those of other agents."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from itertools import product
from urllib.parse import quote

import pytest
from temporalio import workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.http_server import Door, http_server
from tests.support.lab import Lab
from tests.support.served_routes import SERVED_ROUTES

QUEUE, OTHER_QUEUE = "restricted", "restricted-other"
TOKENS = {"clerk": "token-1", "chief": "token-2", "all": "token-3", "other": "token-4"}
SERVED = "ada:token-1:team_clerk,ada:token-2:team_chief,ada:token-3,bob:token-4:team_clerk"
READS = sorted({route.path for name, route in SERVED_ROUTES.items() if name.startswith("GET ")})


@workflow.defn(name="Nightly")
class Nightly:
    """A workflow of the user's own, of no agent: a run of a `team_clerk` for `ada` is its child."""

    @workflow.run
    async def run(self) -> None:
        child = {"agent": "team_clerk", "prompt": "Go.", "tenant": "ada"}
        memo = {"agent": "team_clerk", "tenant": "ada"}
        run_id = f"{workflow.info().workflow_id}/clerk"
        await workflow.execute_child_workflow("AgentWorkflow", child, id=run_id, task_queue=QUEUE, memo=memo)


@pytest.fixture(scope="module")
async def door(lab: Lab) -> AsyncIterator[Door]:
    loaded = load(["tests.acceptance.asking_team"])
    async with (
        running_worker(lab.client, loaded, lab.telemetry, QUEUE),
        Worker(lab.client, task_queue=OTHER_QUEUE, workflows=[Nightly], workflow_runner=UnsandboxedWorkflowRunner()),
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
    return await until_listed(door, found)


@pytest.fixture(scope="module")
async def run_of_workflow(lab: Lab, door: Door) -> AsyncIterator[str]:
    """The run of a `team_clerk` below a workflow that says nothing of a tenant. It waits for a person."""
    root = await lab.client.start_workflow("Nightly", id=f"nightly-{uuid.uuid4().hex[:8]}", task_queue=OTHER_QUEUE)
    found = f"{root.id}/clerk"
    while "refund_7" not in (await read(door, "all", "/api/runs/{id:path}/pending", found))[1]:
        await asyncio.sleep(0.05)
    yield await until_listed(door, found)
    await root.terminate()


async def until_listed(door: Door, found: str) -> str:
    while found not in (await read(door, "all", "/api/runs", found))[1]:  # visibility is a little late
        await asyncio.sleep(0.05)
    return found


async def read(door: Door, name: str, route: str, run_id: str) -> tuple[int, str]:
    """The status and the text of a route that is asked for everything it has of a run."""
    values = {"agent": "team_clerk", "name": "team_clerk", "action": "stop"}
    path = re.sub(r"\{(\w+)(?::path)?\}", lambda match: quote(values.get(match[1], run_id), safe=""), route)
    asked = {"sub_agents": "true", "limit": "900", "step": "1", "at": "1", "id": run_id}
    async with door.http.stream("GET", path, params=asked, headers=door.by(name)) as answer:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer.status_code, run_id
        return answer.status_code, (await answer.aread()).decode()


@pytest.mark.parametrize("route", READS)
async def test_a_run_below_another_agents_run_or_a_workflow_is_nowhere(
    door: Door, sub_run: str, run_of_workflow: str, route: str
) -> None:
    for name, below in [*product(("clerk", "other"), (sub_run, run_of_workflow)), ("chief", run_of_workflow)]:
        status, text = await read(door, name, route, below)
        is_of_run = re.search(r"\{(run|response)_id", route) is not None
        assert status == 404 if is_of_run else status < 500
        assert "refund_7" not in text or name == "chief"  # it sees the call of its own run
        shown = text.replace(f'value="{below}"', "").replace(quote(below, safe=""), "")  # what was asked for
        shown = shown.replace(f'Filter: <span dir="auto">{below}</span>', "")
        assert status == 404 or below not in shown


async def test_who_sees_the_run_at_the_top_sees_those_below_it(door: Door, sub_run: str, run_of_workflow: str) -> None:
    """Where the workflow at the top says nothing of a tenant, who may use all agents sees the runs of the tenant."""
    for route in ("/api/runs", "/api/runs/{id:path}", "/console/decide", "/", "/console/runs/{run_id:path}"):
        for name, below in (("chief", sub_run), ("all", sub_run), ("all", run_of_workflow)):
            status, text = await read(door, name, route, below)
            assert (status, below in text) == (200, True), (route, name)


async def test_a_call_that_cannot_be_seen_cannot_be_decided(door: Door, sub_run: str) -> None:
    decision = {"call_id": "refund_7", "decision": "approve"}
    path = f"/api/runs/{sub_run}/decisions"
    refused = await door.http.post(path, json=decision, headers=door.by("clerk"))
    assert (refused.status_code, refused.json()["code"]) == (404, "run_not_found")
    form = {"run": sub_run, "call_id": "refund_7", "action": "approve"}
    assert (await door.http.post("/console/decide", data=form, headers=door.by("clerk"))).status_code == 404
    assert (await door.http.post(path, json=decision, headers=door.by("chief"))).status_code == 200
