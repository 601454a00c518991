"""Ended runs without a worker: `mulligan serve` and the commands read them from their histories."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError
from temporalio.workflow import NondeterminismError

from mulligan import events, read_steps
from mulligan.client import read_run
from mulligan.client.connect import explain_unreadable_data
from mulligan.devserver import DevServer
from mulligan.ended_runs.query_interceptor import with_ended_runs
from mulligan.serve.console import run_page
from mulligan.wire.resume_page import RESUME_STATE_QUERY
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.support.command_server import run_command
from tests.support.http_server import http_server
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Failure, Turn
from tests.support.people_agents import NAPPING
from tests.support.temporal import environment_of

MODULES = ["tests.support.shop_agents", "tests.support.people_agents"]

Handle = WorkflowHandle[Any, Any]
QUERIES = ("events", "steps", "messages", RESUME_STATE_QUERY, "progress")


SOON = timedelta(seconds=1)
"""A test does not wait as long as a page for a worker that does not exist; what the answer is does not depend on it."""


@pytest.fixture(autouse=True)
def workers_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the calls of terminated runs have ended."""
    monkeypatch.setenv("MULLIGAN_GRACE_SECONDS", "0")


def wait_for_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no query waits long for its answer, as the workers have ended."""
    monkeypatch.setattr(read_run.ask_once, "__kwdefaults__", {"timeout": SOON})
    monkeypatch.setattr(run_page, "SECONDS_FOR_PROGRESS", SOON.total_seconds())


async def answers(client: Client, run: str, within: timedelta | None = None) -> dict[str, Any]:
    """What the run answers, with all events."""
    handle = client.get_workflow_handle(run)
    return {
        name: await handle.query(name, args=[0, 1000] if name in QUERIES[:3] else [], rpc_timeout=within)
        for name in QUERIES
    }


async def completed(at: Lab) -> Handle:
    handle: Handle = await at.start(
        [call("click", '{"element": "#a"}'), call("search_orders", '{"customer": 7}'), call("no_such"), DONE]
    )
    assert (await handle.result())["recovered_failures"] == 2
    return handle


async def failed(at: Lab) -> Handle:
    handle: Handle = await at.start([Turn(text="", fail_first=[Failure(400)])])
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    return handle


async def cancelled(at: Lab) -> Handle:
    handle = await waiting(at)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    return handle


async def terminated(at: Lab) -> Handle:
    """In the middle of a step: one call has a result, one waits for a person, one runs."""
    handle = await waiting(at)
    await handle.terminate()
    return handle


async def stopped(at: Lab) -> Handle:
    handle = await waiting(at)
    await handle.signal("stop", "enough")
    NAPPING.clear()  # a stopped run waits for the call that runs
    assert (await handle.result())["status"] == "stopped"
    return handle


async def waiting(at: Lab) -> Handle:

    calls = [("discount", '{"percent": 5}', "c1"), ("refund", REFUND, "c2"), ("nap", '{"seconds": 600}', "c3")]
    handle: Handle = await at.start([Turn(calls=calls), DONE], agent="desk")
    while len(await handle.query("pending")) != 1 or not (await settled(handle)):
        await asyncio.sleep(0.05)
    return handle


async def settled(handle: Handle) -> bool:
    steps = (await handle.query("steps"))["steps"]
    return bool(steps and steps[0]["tool_calls"][0]["result"])


REFUND = '{"order": 7, "amount": {"euros": 5}}'


async def fork_point(client: Client, run_id: str) -> Any:
    """What a fork at the first step needs of a run."""
    return await client.get_workflow_handle(run_id).query(RESUME_STATE_QUERY, args=[0, 1])


ENDS: list[Callable[[Lab], Awaitable[Handle]]] = [completed, failed, cancelled, terminated, stopped]


async def test_an_ended_run_answers_without_a_worker_as_with_one(lab: Lab) -> None:
    queue = f"ended-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    async with running_worker(lab.client, load(MODULES), lab.telemetry, queue):
        handles = [await end(at) for end in ENDS]
        of_worker = [await answers(lab.client, handle.id) for handle in handles]
        forks = [await fork_point(lab.client, handle.id) for handle in handles]
    client = with_ended_runs(lab.client)
    for end, handle, expected in zip(ENDS, handles, of_worker, strict=True):
        found = await answers(client, handle.id, SOON)
        if end is terminated:
            for progress in (expected["progress"], found["progress"]):
                progress |= {"running": [], "waiting_for": None}  # the worker answers as if the call still ran
        for name in QUERIES:
            assert found[name] == expected[name], (end.__name__, name)
    assert [await fork_point(client, handle.id) for handle in handles] == forks
    with pytest.raises(RPCError):  # without the interceptor no one answers
        await lab.client.get_workflow_handle(handles[0].id).query("events", rpc_timeout=SOON)


async def test_all_parts_of_a_run_that_continued_as_new_can_be_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 40)
    queue = f"ended-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    async with running_worker(lab.client, load(MODULES), lab.telemetry, queue):
        turns = [call("discount", f'{{"percent": {number}}}') for number in range(1, 11)]
        handle: Handle = await at.start([*turns, DONE], agent="desk")
        assert (await handle.result())["steps"] == 11
        expected = [event.model_dump() async for event in events.follow(lab.client, handle.id)]
    wait_for_no_worker(monkeypatch)
    runs = [run async for run in lab.client.list_workflows(f'WorkflowId = "{handle.id}"')]
    assert len(runs) > 1
    client = with_ended_runs(lab.client)
    assert [event.model_dump() async for event in events.follow(client, handle.id)] == expected
    assert len(await read_steps(client, client.get_workflow_handle(handle.id))) == 11


async def test_the_page_the_events_and_the_command_show_an_ended_run_without_a_worker(
    lab: Lab, temporal: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = f"ended-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    async with running_worker(lab.client, load(MODULES), lab.telemetry, queue):
        handle = await completed(at)
    wait_for_no_worker(monkeypatch)
    async with http_server(lab.client) as served:
        page = await served.http.get(f"/console/runs/{handle.id}", timeout=60)
        assert (page.status_code, "no_such" in page.text) == (200, True)
        assert "No worker of the run answers now" not in page.text
        found = [frame.event async for frame in served.frames(handle.id)]
        assert (found[0], found[-1]) == ("run_started", "run_ended")
    code, out, _ = await run_command("show", handle.id, "--json", env={**os.environ, **environment_of(temporal)})
    assert (code, len(json.loads(out)["steps"])) == (0, 4)


async def test_an_encrypted_run_is_read_with_its_keys_only(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", f"k:{base64.b64encode(b'k' * 32).decode()}")
    client, queue = await lab.another_client(), f"ended-{uuid.uuid4().hex[:6]}"
    async with running_worker(client, load(MODULES), lab.telemetry, queue):
        handle = await completed(Lab(client, lab.model, lab.otlp, lab.telemetry, queue))
    of_owner = with_ended_runs(client).get_workflow_handle(handle.id)
    assert len((await of_owner.query("steps", rpc_timeout=SOON))["steps"]) == 4
    with pytest.raises(KeyError) as refused:
        await with_ended_runs(lab.client).get_workflow_handle(handle.id).query("steps", rpc_timeout=SOON)
    assert "MULLIGAN_ENCRYPTION_KEYS" in explain_unreadable_data(refused.value)


async def test_the_page_of_a_run_whose_history_cannot_be_replayed_says_that_no_worker_answers(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> Any:
        raise NondeterminismError("of another version")

    monkeypatch.setattr("mulligan.ended_runs.replay.replay", refuse)
    queue = f"ended-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    async with running_worker(lab.client, load(MODULES), lab.telemetry, queue):
        handle = await completed(at)
    wait_for_no_worker(monkeypatch)
    async with http_server(lab.client) as served:
        page = await served.http.get(f"/console/runs/{handle.id}", timeout=90)
    assert (page.status_code, "No worker of the run answers now" in page.text) == (200, True)
