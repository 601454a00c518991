"""`mulligan content prune`: what was not used for long is deleted, unless a run that may need it is open."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from typer.testing import CliRunner, Result

from mulligan.cli.app import app
from mulligan.client.connect import connect
from mulligan.client.content_store import ContentStore, configured_content_store
from mulligan.devserver import temporal_server
from tests.support.content_files import png
from tests.support.temporal import connect_to, environment_of

DAY = 86_400


@workflow.defn
class Chain:
    """Continues as new when it is told to, and stays open."""

    def __init__(self) -> None:
        self.goes_on = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self.goes_on)
        workflow.continue_as_new()

    @workflow.signal
    def go_on(self) -> None:
        self.goes_on = True


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[Client]:
    """A client of a server of its own: no other test has open runs there."""
    async with temporal_server() as server:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment_of(server).items():
                patch.setenv(name, value)
            yield await connect_to(server)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ContentStore:
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path / "content"))
    store = configured_content_store()
    assert store is not None
    return store


async def prune(*words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, ("content", "prune", *words), catch_exceptions=False)


async def test_old_content_is_deleted_and_counted(client: Client, store: ContentStore, tmp_path: Path) -> None:
    nothing = await prune("--older-than", "1h")
    assert (nothing.exit_code, nothing.stdout) == (0, "0 files, 0 bytes deleted\n")
    old, new = await store.put(png(3_000, 1)), await store.put(png(3_000, 2))
    file = tmp_path / "content" / old[7:9] / old[7:]
    os.utime(file, (time.time() - 40 * DAY,) * 2)
    size = file.stat().st_size
    counted = await prune("--older-than", "30d", "--dry-run", "--json")
    assert (counted.exit_code, json.loads(counted.stdout)) == (0, {"files": 1, "bytes": size, "dry_run": True})
    assert file.exists()
    assert (await prune("--older-than", "41d")).stdout == "0 files, 0 bytes deleted\n"
    assert (await prune("--older-than", "30d")).stdout == f"1 file, {size:,} bytes deleted\n"
    assert not file.exists()
    assert await store.get(new)


async def test_an_open_run_that_began_earlier_refuses_it_also_after_it_continued_as_new(
    client: Client, store: ContentStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mulligan.client.prune_content.SHORTEST", timedelta(0))
    ref = await store.put(png(3_000))
    async with Worker(client, task_queue="chains", workflows=[Chain], workflow_runner=UnsandboxedWorkflowRunner()):
        handle = await client.start_workflow(Chain.run, id="a-chain", task_queue="chains")
        await asyncio.sleep(3)
        await handle.signal(Chain.go_on)
        while (await client.get_workflow_handle("a-chain").describe()).run_id == handle.first_execution_run_id:
            await asyncio.sleep(0.05)
    os.utime(tmp_path / "content" / ref[7:9] / ref[7:], (time.time() - DAY,) * 2)
    while not [each async for each in client.list_workflows('ExecutionStatus = "Running"')]:
        await asyncio.sleep(0.05)
    refused = await prune("--older-than", "2s")
    assert refused.exit_code == 1
    assert "The run 'a-chain' is open, and may refer to content that old:" in " ".join(refused.stderr.split())
    assert await store.get(ref)
    assert (await prune("--older-than", "1h")).exit_code == 0  # the run began after that
    os.utime(tmp_path / "content" / ref[7:9] / ref[7:], (time.time() - DAY,) * 2)
    assert (await prune("--older-than", "2s", "--force")).stdout.startswith("1 file, ")
    await client.get_workflow_handle("a-chain").terminate()


async def test_an_open_fork_keeps_what_the_run_had_from_which_it_was_forked(
    client: Client, store: ContentStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also a fork of a fork, and one whose origin is gone."""
    monkeypatch.setattr("mulligan.client.prune_content.SHORTEST", timedelta(0))
    ref = await store.put(png(3_000))
    os.utime(tmp_path / "content" / ref[7:9] / ref[7:], (time.time() - DAY,) * 2)
    started = await client.start_workflow(Chain.run, id="an-origin", task_queue="nobody")
    await client.get_workflow_handle("an-origin").terminate()
    await asyncio.sleep(3)
    origins = (("an-origin", started.first_execution_run_id), ("a-fork-0", None), ("gone", None))
    for number, (origin, run_id) in enumerate(origins):
        memo = {"forked_from": {"id": origin, "run_id": run_id, "step": 1}}
        fork = await client.start_workflow(Chain.run, id=f"a-fork-{number}", task_queue="nobody", memo=memo)
        while fork.id not in [each.id async for each in client.list_workflows('ExecutionStatus = "Running"')]:
            await asyncio.sleep(0.05)
        refused = await prune("--older-than", "2s")
        assert refused.exit_code == 1
        assert f"The run '{fork.id}' is open, and may refer" in " ".join(refused.stderr.split())
        assert await store.get(ref)
        await client.get_workflow_handle(fork.id).terminate()
        os.utime(tmp_path / "content" / ref[7:9] / ref[7:], (time.time() - DAY,) * 2)
        while [each async for each in client.list_workflows('ExecutionStatus = "Running"')]:
            await asyncio.sleep(0.05)


async def test_an_open_run_whose_memo_cannot_be_decrypted_here_may_be_a_fork(
    client: Client, store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mulligan.client.prune_content.SHORTEST", timedelta(0))
    key = base64.b64encode(bytes(32)).decode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULLIGAN_ENCRYPTION_KEYS", f"a:{key}")
        hidden = await connect()
    await hidden.start_workflow(
        Chain.run, id="hidden", task_queue="nobody", memo={"forked_from": {"id": "x", "step": 1}}
    )
    while "hidden" not in [each.id async for each in client.list_workflows('ExecutionStatus = "Running"')]:
        await asyncio.sleep(0.05)
    refused = await prune("--older-than", "1h")
    assert refused.exit_code == 1
    assert "or its memo cannot be decrypted here." in " ".join(refused.stderr.split())
    await client.get_workflow_handle("hidden").terminate()


@pytest.mark.parametrize(
    ("words", "setting", "says"),
    [
        (["--older-than", "30"], "{}/content", "--older-than is 30; give a duration such as"),
        (["--older-than", "59m"], "{}/content", "it must be an hour or more."),
        (["--older-than", "30d"], "", "There is no content storage: set MULLIGAN_CONTENT_DIR"),
        (["--older-than", "30d"], "s3", "A bucket does not record"),
    ],
)
async def test_wrong_use_is_one_sentence(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], setting: str, says: str
) -> None:
    monkeypatch.setenv("MULLIGAN_EXTERNAL_STORAGE", "s3://a-bucket/runs" if setting == "s3" else "")
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", setting.format(tmp_path) if setting != "s3" else "")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    ran = await prune(*words)
    assert ran.exit_code == 2
    [line] = ran.stderr.splitlines()
    assert line.startswith("error: ")
    assert says in line.replace("'", "")
