"""Model calls in batches on a real server: how they are gathered, submitted and answered, and what is lost or paid twice."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle

from mulligan.context_view.model_context import read_model_context
from mulligan.devserver import DevServer
from mulligan.errors import ModelRequestError, ModelUnavailableError, error_of
from mulligan.wire.batch import REMOVE_CALL
from mulligan.worker.loading import load, load_agents
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.live.test_resets import points_of, reset
from tests.support.batch_server import BatchServer
from tests.support.lab import Lab
from tests.support.temporal import connect_to
from tests.support.worker_process import worker_process

PAGE = Path(__file__).parents[2] / "docs/batch.md"
MODULE = "tests.support.batch_agents"
RUNS = int(os.environ.get("BATCH_RUNS", "24"))
"""A multiple of 4."""
Handle = WorkflowHandle[Any, Any]


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[BatchServer]:
    """The provider, and the settings with which workers use it."""
    async with BatchServer() as server:
        for name, value in settings_of(server, tmp_path).items():
            monkeypatch.setenv(name, value)
        yield server
        assert server.faults == []


def settings_of(server: BatchServer, folder: Path) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": server.base_url,
        "OPENAI_API_KEY": "test-key",
        "MULLIGAN_CONTENT_DIR": str(folder / "content"),
        "MULLIGAN_BATCH_SECONDS": "0.1",
        "MULLIGAN_BATCH_POLL_SECONDS": "0.1",
    }


@pytest.fixture
async def at(lab: Lab, server: BatchServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    """A worker with the agents of this file."""
    monkeypatch.setattr(limits, "BATCH_RETRY_FIRST", 0.02)
    queue = f"batch-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load([MODULE]), lab.telemetry, queue):
        yield Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)


async def start(at: Lab, prompt: str, agent: str = "clerk") -> Handle:
    given = {"agent": agent, "prompt": prompt}
    return await at.client.start_workflow(
        "AgentWorkflow", given, id=f"batch-{uuid.uuid4().hex[:8]}", task_queue=at.task_queue
    )


async def waits_in_batch(handle: Handle) -> None:
    while "in a batch" not in (((await handle.query("progress"))["waiting_for"]) or {"detail": ""})["detail"]:
        await asyncio.sleep(0.05)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.05)


def only_full_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is submitted as it is old enough."""
    monkeypatch.setenv("MULLIGAN_BATCH_SECONDS", "600")


async def test_the_calls_of_many_runs_are_few_files_at_half_the_price(
    at: Lab, server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request is answered once, in files of limited size, which are deleted at the provider."""
    most = RUNS // 4
    monkeypatch.setenv("MULLIGAN_BATCH_REQUESTS", str(most))
    only_full_files(monkeypatch)
    handles = [await start(at, f"Number {number}.") for number in range(RUNS)]
    results = await asyncio.gather(*(handle.result() for handle in handles))
    assert [result["status"] for result in results] == ["completed"] * RUNS
    assert {result["output"] for result in results} == {"Done."}
    assert set(server.answered.values()) == {1}
    assert len(server.answered) == RUNS
    assert [len(batch.entries) for batch in server.batches.values()] == [most] * 4
    assert (await read_model_context(at.client, handles[3].id, 1)).messages[0].text == "Number 3."
    usage = results[0]["usage"]
    live = (usage["input_tokens"] * 0.25 + usage["output_tokens"] * 2) / 1_000_000
    assert results[0]["cost"] == pytest.approx(live / 2, rel=0.2)
    await until(lambda: not server.files)


ROWS: dict[str, tuple[str, list[str], str]] = {
    # the prompt, the statuses of the first batches, the run's status or error
    "a step with a tool call is two batches": ("count", [], "completed"),
    "an entry with 429 is sent again": ("busy", [], "completed"),
    "an entry with 400 fails the run once": ("refuse", [], "ModelRequestError"),
    "a model without reasoning is asked without it": ("plain", [], "completed"),
    "a batch that expires is sent again": ("x", ["expired"], "completed"),
    "a batch that fails as a whole is sent again": ("x", ["failed"], "completed"),
    "a batch that is cancelled at the provider is sent again": ("x", ["cancelled"], "completed"),
    "the tries are limited": ("x", ["failed"] * 5, "ModelUnavailableError"),
}


@pytest.mark.parametrize("agent", ["clerk", "chatting_clerk"])
async def test_entries_that_fail_follow_the_error_table(at: Lab, server: BatchServer, agent: str) -> None:
    for row, (prompt, ends, expected) in ROWS.items():
        server.ends[:] = ends
        handle = await start(at, prompt, agent)
        try:
            found = (await handle.result())["status"]
        except WorkflowFailureError as failure:
            error = error_of(failure)
            assert isinstance(error, ModelRequestError | ModelUnavailableError)
            found = type(error).__name__
        assert found == expected, row


async def test_a_batch_whose_creation_had_no_response_is_found_and_not_created_again(
    at: Lab, server: BatchServer
) -> None:
    server.loses_creation = True
    handle = await start(at, "x")
    assert (await handle.result())["status"] == "completed"
    assert len(server.batches) == 1


async def test_a_batch_that_is_refused_fails_its_runs_and_leaves_no_file(at: Lab, server: BatchServer) -> None:
    server.refuses_batches = True
    with pytest.raises(WorkflowFailureError) as failed:
        await (await start(at, "x")).result()
    error = error_of(failed.value)
    assert isinstance(error, ModelRequestError)
    assert "Billing hard limit" in error.message
    assert server.files == {}
    assert len(server.deleted) == 1


async def test_a_request_that_is_lost_before_its_batch_is_stored_and_sent_again(
    at: Lab, server: BatchServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MULLIGAN_BATCH_REQUESTS", "2")
    only_full_files(monkeypatch)
    lost = await start(at, "lost")
    await waits_in_batch(lost)
    for file in (tmp_path / "content").rglob("*"):
        if file.is_file():
            file.unlink()
    monkeypatch.setenv("MULLIGAN_BATCH_REQUESTS", "1")  # what is sent again is submitted at once
    other = await start(at, "other")
    assert [(await handle.result())["status"] for handle in (lost, other)] == ["completed"] * 2
    assert set(server.answered.values()) == {1}
    assert len(server.answered) == 2


@pytest.mark.parametrize("end", ["stop", "cancel"])
async def test_a_run_that_is_ended_takes_its_request_back(
    at: Lab, server: BatchServer, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """While it is not submitted; the requests of other runs in the same file are answered."""
    monkeypatch.setenv("MULLIGAN_BATCH_REQUESTS", "3")
    only_full_files(monkeypatch)
    ended, other = await start(at, "ended"), await start(at, "other")
    await waits_in_batch(ended)
    await waits_in_batch(other)
    if end == "stop":
        await ended.execute_update("stop", {})
        assert (await ended.result())["status"] == "stopped"
    else:
        await ended.cancel()
        with pytest.raises(WorkflowFailureError):
            await ended.result()
    await has_taken_back(at)
    more = [await start(at, f"more {number}") for number in range(2)]
    assert {(await handle.result())["status"] for handle in (other, *more)} == {"completed"}
    [batch] = server.batches.values()
    assert len(batch.entries) == 3
    assert not [entry for entry in batch.entries if "ended" in json.dumps(entry)]


async def has_taken_back(at: Lab) -> None:
    """Wait until the collector has got the signal of a run that was ended."""
    collector = at.client.get_workflow_handle(f"mulligan-batch-{at.task_queue}-openai:gpt-5-mini")
    while True:
        async for event in collector.fetch_history_events():
            if event.workflow_execution_signaled_event_attributes.signal_name == REMOVE_CALL:
                return
        await asyncio.sleep(0.05)


async def test_a_run_that_is_stopped_after_its_batch_was_submitted_ends_at_once(at: Lab, server: BatchServer) -> None:
    """The answers of the others arrive all the same."""
    server.holds = True
    ended, other = await start(at, "ended"), await start(at, "other")
    await until(lambda: sum(len(batch.entries) for batch in server.batches.values()) == 2)
    await ended.execute_update("stop", {})
    assert (await ended.result())["status"] == "stopped"
    server.holds = False
    assert (await other.result())["status"] == "completed"


@pytest.mark.parametrize("point", ["uploaded", "created", "polled", "delivering"])
async def test_a_worker_that_is_killed_loses_no_request_and_pays_for_none_twice(
    temporal: DevServer, server: BatchServer, tmp_path: Path, point: str
) -> None:
    client, queue = await connect_to(temporal), f"batch-{uuid.uuid4().hex[:6]}"
    settings = {**settings_of(server, tmp_path), "MULLIGAN_BATCH_SECONDS": "600", "MULLIGAN_BATCH_REQUESTS": "4"}
    server.stuck_at = point
    lab: Any = type("At", (), {"client": client, "task_queue": queue})
    async with worker_process(MODULE, queue, temporal, **settings) as killed:
        handles = [await start(lab, f"Number {number}.") for number in range(4)]
        await server.stuck.wait()
        killed.kill()
        await killed.wait()
    async with worker_process(MODULE, queue, temporal, **settings):
        results = await asyncio.gather(*(handle.result() for handle in handles))
    assert [result["status"] for result in results] == ["completed"] * 4
    assert set(server.answered.values()) == {1}
    assert sum(len(batch.entries) for batch in server.batches.values()) == 4


async def test_structured_output_and_the_next_model_of_the_list_work_in_batches(at: Lab, server: BatchServer) -> None:
    reported = await (await start(at, "x", "batch_reporter")).result()
    assert (reported["status"], reported["output"]) == ("completed", {"words": 3})
    asked = await (await start(at, "Please refuse responses.", "careful_clerk")).result()
    assert (asked["status"], asked["output"]) == ("completed", "Done.")
    paths = [batch.json["endpoint"] for batch in server.batches.values()]
    assert paths == ["/v1/responses", "/v1/responses", "/v1/chat/completions"]


async def test_a_collector_that_continues_as_new_keeps_what_it_has_gathered(
    at: Lab, server: BatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All requests are in one file, although the collector has begun anew in between."""
    monkeypatch.setattr(limits, "COLLECTOR_SIGNALS", 3)
    monkeypatch.setenv("MULLIGAN_BATCH_REQUESTS", "8")
    only_full_files(monkeypatch)
    handles = [await start(at, f"Number {number}.") for number in range(8)]
    results = await asyncio.gather(*(handle.result() for handle in handles))
    assert [result["status"] for result in results] == ["completed"] * 8
    assert [len(batch.entries) for batch in server.batches.values()] == [8]
    collector = f"mulligan-batch-{at.task_queue}-openai:gpt-5-mini"
    runs = [run async for run in at.client.list_workflows(f'WorkflowId = "{collector}"')]
    assert len(runs) > 1


async def test_a_run_that_is_reset_into_its_wait_takes_the_answer_of_its_batch(at: Lab, server: BatchServer) -> None:
    """Reset to before its request, it asks again, as a live call would."""
    server.holds = True
    handle = await start(at, "x")
    await until(lambda: len(server.batches) == 1)
    points = await points_of(handle)
    again = await reset(at, handle, points[-1])
    await waits_in_batch(again)
    server.holds = False
    assert (await again.result())["status"] == "completed"
    assert len(server.batches) == 1
    before = await reset(at, again, points[0])
    assert (await before.result())["status"] == "completed"
    assert len(server.batches) == 2


async def test_encrypted_runs_have_batches_and_their_requests_are_not_readable_in_the_storage(
    lab: Lab, server: BatchServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = base64.urlsafe_b64encode(bytes(range(32))).decode()
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", f"one:{key}")
    client, queue = await lab.another_client(), f"batch-{uuid.uuid4().hex[:6]}"
    async with running_worker(client, load([MODULE]), lab.telemetry, queue):
        handle = await start(Lab(client, lab.model, lab.otlp, lab.telemetry, queue), "A secret.")
        assert (await handle.result())["output"] == "Done."
    stored = [path.read_bytes() for path in (tmp_path / "content").rglob("*") if path.is_file()]
    assert len(stored) == 2
    assert not [data for data in stored if b"secret" in data or b"Done" in data]


async def test_the_example_of_the_page_runs(lab: Lab, server: BatchServer) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), names)
    queue = f"batch-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load_agents([names["clerk"]], []), lab.telemetry, queue):
        handle = await start(
            Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue), "Dear shop, my lamp is broken."
        )
        assert (await handle.result())["output"] == "Done."
    [batch] = server.batches.values()
    assert "You sort letters" in json.dumps(batch.entries)
