"""Conversations of megabytes: over continue-as-new, in external storage, in pages, and in a full history."""

from __future__ import annotations

import base64
import json
import shutil
import stat
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mulligan import connect
from mulligan.client.connect import explain_unreadable_data
from mulligan.client.read_run import read_steps
from mulligan.devserver import DevServer, temporal_server
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.support.lab import DONE, Lab, call
from tests.support.large_payload_agent import MEGABYTE, noise, prose

KEYS = f"n:{base64.b64encode(b'n' * 32).decode()}"


@pytest.fixture(scope="module")
async def continuing_server() -> AsyncIterator[DevServer]:
    """A server that suggests to continue as new after every other step."""
    async with temporal_server(dynamic_config=["limit.historyCount.suggestContinueAsNew=20"]) as server:
        yield server


@asynccontextmanager
async def serving(lab: Lab, server: DevServer) -> AsyncIterator[Lab]:
    """A worker for the large agent, with the current settings."""
    queue = f"large-{uuid.uuid4().hex[:6]}"
    client = await connect(server.address)
    async with running_worker(client, load(["tests.support.large_payload_agent"]), lab.telemetry, queue):
        yield Lab(client, lab.model, lab.otlp, lab.telemetry, queue)


def given(kind: str, megabytes: int) -> list[Any]:
    """Turns whose calls return a megabyte each."""
    return [call(f"give_{kind}", f'{{"size": {MEGABYTE}, "seed": {n}}}') for n in range(megabytes)]


async def runs_of(lab: Lab, run_id: str) -> int:
    return len([run async for run in lab.client.list_workflows(f"WorkflowId = '{run_id}'")])


async def all_messages(handle: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    following: int | None = 0
    while following is not None:
        page = await handle.query("messages", args=[following, 10**9])
        assert len(json.dumps(page["messages"])) <= max(limits.PAGE_BYTES, MEGABYTE) * 1.1
        messages += page["messages"]
        following = page["next"]
    return messages


async def is_whole(lab: Lab, handle: Any, texts: list[str]) -> None:
    """Assert that the run completed, and that the last model request has every text in its order."""
    ran = await lab.look(handle)
    assert (ran.result["status"], ran.result["steps"]) == ("completed", len(texts) + 1)
    assert [m["content"] for m in ran.requests[-1].json["messages"] if m["role"] == "tool"] == texts


async def test_three_megabytes_of_text_continue_as_new_without_external_storage(
    lab: Lab, continuing_server: DevServer
) -> None:
    """Compressed it is below Temporal's limit for a payload."""
    async with serving(lab, continuing_server) as at:
        handle = await at.start([*given("prose", 4), DONE], agent="large")
        await is_whole(at, handle, [prose(MEGABYTE, n) for n in range(4)])
        assert await runs_of(at, handle.id) >= 2


@pytest.mark.parametrize("keys", ["", KEYS], ids=["open", "encrypted"])
async def test_state_that_cannot_be_compressed_goes_through_external_storage(
    lab: Lab, continuing_server: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    """In files that only this user can read, encrypted if there are keys."""
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", keys)
    monkeypatch.setenv("MULLIGAN_EXTERNAL_STORAGE", tmp_path.as_uri())
    texts = [noise(MEGABYTE, n) for n in range(4)]
    async with serving(lab, continuing_server) as at:
        handle = await at.start([*given("noise", 4), DONE], agent="large")
        await is_whole(at, handle, texts)
        assert [m["text"] for m in await all_messages(handle) if m["role"] == "tool"] == texts
        assert await runs_of(at, handle.id) >= 2
        monkeypatch.delenv("MULLIGAN_EXTERNAL_STORAGE")
        stranger = (await connect(continuing_server.address)).get_workflow_handle(handle.id)
        with pytest.raises(RuntimeError) as raised:
            await stranger.query("messages", args=[2, 1])
        assert explain_unreadable_data(raised.value) == (
            "a part of this run is in external storage; set MULLIGAN_EXTERNAL_STORAGE to that of its worker."
        )
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    kept = b"".join(path.read_bytes() for path in files)
    assert (texts[0].encode() in kept) is not bool(keys)
    assert all(path.stat().st_size > 500_000 for path in files)


async def test_a_user_workflow_hands_over_more_than_temporal_accepts_through_storage(
    lab: Lab, continuing_server: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `carry()` and `DurableAgent(state=…)`."""
    monkeypatch.setenv("MULLIGAN_EXTERNAL_STORAGE", tmp_path.as_uri())
    async with serving(lab, continuing_server) as at:
        run_id = f"own-{uuid.uuid4().hex[:8]}"
        at.model.script(run_id, [*given("noise", 4), DONE])
        arguments = ["Go.", f"openai-chat:{run_id}", b"", 0]
        result = await at.client.execute_workflow("HandedOver", args=arguments, id=run_id, task_queue=at.task_queue)
    assert result == ["completed", "done", 5, 5, 10]
    assert max(path.stat().st_size for path in tmp_path.rglob("*")) > 2 * MEGABYTE


async def test_a_run_waits_until_a_missing_payload_is_back(
    lab: Lab, continuing_server: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage folder that is not mounted fails workflow tasks, not the run."""
    kept, away = tmp_path / "kept", tmp_path / "away"
    kept.mkdir()
    monkeypatch.setenv("MULLIGAN_EXTERNAL_STORAGE", kept.as_uri())
    client = await connect(continuing_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"large-{uuid.uuid4().hex[:6]}")
    handle = await at.start([DONE], agent="large", prompt=noise(3 * MEGABYTE))
    kept.rename(away)
    kept.mkdir()
    async with running_worker(client, load(["tests.support.large_payload_agent"]), lab.telemetry, at.task_queue):
        while (task := (await handle.describe()).raw_description.pending_workflow_task).attempt < 2:
            assert task is not None
        shutil.rmtree(kept)  # the worker has made its folder for content there
        away.rename(kept)
        assert (await handle.result())["status"] == "completed"
    failures = [
        event.workflow_task_failed_event_attributes.failure.message
        async for event in handle.fetch_history_events()
        if event.HasField("workflow_task_failed_event_attributes")
    ]
    assert "is not there: is it mounted?" in failures[0]


async def test_a_full_history_ends_the_run_as_max_history_and_keeps_all_its_data(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, temporal: DevServer
) -> None:
    """A run that cannot continue as new goes on in one history, up to a limit below the server's, which is small here."""
    monkeypatch.setattr(limits, "HISTORY_BYTES", 3 * MEGABYTE)
    async with serving(lab, temporal) as at:
        ran = await at.run([*given("noise", 9), DONE], agent="large")
        messages = await all_messages(ran.handle)
        progress, steps = await ran.handle.query("progress"), await read_steps(at.client, ran.handle)
    assert (ran.result["status"], ran.result["steps"], ran.result["tool_calls"]) == ("max_history", 3, 3)
    assert progress["status"] == "max_history"
    assert ran.result["usage"]["input_tokens"] == 30
    assert [len(step["tool_calls"][0]["result"]["text"]) > 1000 for step in steps] == [True] * 3
    assert [len(m["text"]) for m in messages if m["role"] == "tool"] == [MEGABYTE] * 3
    assert ran.spans_of("agent.finish")[0].attributes["mulligan.status"] == "max_history"


async def test_a_page_contains_as_many_messages_as_fit_in_a_query_result(lab: Lab, temporal: DevServer) -> None:
    """Thousands of short messages, requested all at once."""
    given = [{"role": "user", "text": f"{n:080}"} for n in range(8_000)]
    async with serving(lab, temporal) as at:
        ran = await at.run([call("take", '{"text": "x"}'), DONE], agent="large", messages=given)
        messages = await all_messages(ran.handle)
        first = await ran.handle.query("messages", args=[0, 10**12])
    assert [m["text"] for m in messages[:-4]] == [m["text"] for m in given]
    assert first["total"] == len(messages) == 8_004
    assert 4_000 < first["next"] < 8_000
