"""Worker Versioning: a run stays on the build on which it began; if that build is gone, the run can be moved."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from mulligan import connect
from mulligan.devserver import DevServer, temporal_server
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.docs_block import docs_block, shell_lines, temporal_command
from tests.support.lab import DONE, Lab, call
from tests.support.temporal import connect_to, environment_of
from tests.support.worker_versions import make_current


@asynccontextmanager
async def worker_of(build: str, at: Lab, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A worker of one build. The deployment has the name of the task queue, and the worker's identity is the build id."""
    client = await connect(at.client.service_client.config.target_host, namespace=at.client.namespace, identity=build)
    with monkeypatch.context() as environment:
        environment.setenv("TEMPORAL_DEPLOYMENT_NAME", at.task_queue)
        environment.setenv("TEMPORAL_WORKER_BUILD_ID", build)
        running = running_worker(client, load(["tests.support.shop_agents"]), at.telemetry, at.task_queue)
        await running.__aenter__()
    try:
        yield
    finally:
        await running.__aexit__(None, None, None)


async def builds_of(handle: Any) -> set[str]:
    """The builds of the workflow tasks of a run, and of the workers that ran its activities."""
    builds = set()
    async for event in handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            builds.add(event.workflow_task_completed_event_attributes.deployment_version.build_id)
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            builds.add(event.activity_task_started_event_attributes.identity)
    return builds


async def run_waiting_in_a_tool(at: Lab, flag: Path, steps: int = 1) -> Any:
    """Start a run whose tool waits until the file exists; more steps follow."""
    turns = [call("wait_for_file"), *(call("now") for _ in range(steps)), DONE]
    handle = await at.start(turns, max_steps=100, metadata={"file": str(flag)})
    while (await handle.query("progress"))["running"] != ["wait_for_file"]:
        await asyncio.sleep(0.1)
    return handle


def on_its_own_queue(lab: Lab, client: Client | None = None) -> Lab:
    return Lab(client or lab.client, lab.model, lab.otlp, lab.telemetry, f"versions-{uuid.uuid4().hex[:6]}")


@pytest.mark.parametrize("model_calls", ["", "5"], ids=["one queue", "a queue for model calls"])
async def test_a_run_ends_on_the_build_on_which_it_began(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model_calls: str
) -> None:
    """A run that begins after a deploy runs on the new build, one that began before it on the old one."""
    monkeypatch.setenv("MULLIGAN_MAX_CONCURRENT_MODEL_CALLS", model_calls)
    at = on_its_own_queue(lab)
    async with worker_of("a", at, monkeypatch), worker_of("b", at, monkeypatch):
        await make_current(at.client, at.task_queue, "a")
        before = await run_waiting_in_a_tool(at, tmp_path / "go")
        await make_current(at.client, at.task_queue, "b")
        after = await at.run([call("now"), DONE])
        (tmp_path / "go").touch()
        ran = await at.look(before)
    assert (ran.result["status"], ran.result["recovered_failures"], len(ran.steps)) == ("completed", 0, 3)
    assert await builds_of(before) == {"a"}
    assert after.result["status"] == "completed"
    assert await builds_of(after.handle) == {"b"}


async def test_a_run_that_continues_as_new_stays_on_its_build(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its later runs begin after the deploy."""
    async with temporal_server(dynamic_config=["limit.historyCount.suggestContinueAsNew=60"]) as server:
        at = on_its_own_queue(lab, await connect_to(server))
        async with worker_of("a", at, monkeypatch), worker_of("b", at, monkeypatch):
            await make_current(at.client, at.task_queue, "a")
            run = await run_waiting_in_a_tool(at, tmp_path / "go", steps=8)
            await make_current(at.client, at.task_queue, "b")
            (tmp_path / "go").touch()
            ran = await at.look(run)
            assert (await run.describe()).run_id != run.first_execution_run_id
            assert await builds_of(run) == {"a"}
    assert ran.result["status"] == "completed"


async def test_a_run_whose_build_is_gone_can_be_moved_to_another_build(
    lab: Lab, temporal: DevServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It waits for its build until it is pinned to another one: by the commands of docs/playbooks-workers.md."""
    monkeypatch.setenv("MULLIGAN_GRACE_SECONDS", "0")
    at = on_its_own_queue(lab)
    printed = docs_block("docs/playbooks-workers.md", "set-current-version")
    async with worker_of("b", at, monkeypatch):
        async with worker_of("a", at, monkeypatch):
            await make_current(at.client, at.task_queue, "a")
            moved = await run_waiting_in_a_tool(at, tmp_path / "never")
            names = {"mulligan-worker": at.task_queue, "GOOD": "b", "BAD": "a", "FIXED": "b", " ID ": f" {moved.id} "}
            roll_back, *rest = shell_lines(replaced(printed, names))
            await temporal_command(roll_back, temporal)
        await at.run([DONE])
        assert await builds_of(moved) == {"a"}
        for line in rest:
            await temporal_command(line, temporal)
        ran = await at.look(moved)
    assert ran.result["status"] == "completed"
    assert [call["result"]["error"] and call["result"]["error"]["kind"] for call in ran.calls] == ["tool_lost", None]
    assert await builds_of(moved) == {"a", "b"}


def replaced(text: str, names: dict[str, str]) -> str:
    """A block of a page with the names of this test in place of the printed ones."""
    for old, new in names.items():
        assert old in text
        text = text.replace(old, new)
    return text


async def test_a_version_is_tried_before_it_is_current(
    lab: Lab, temporal: DevServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program of docs/versions.md pins a run to it."""
    at = on_its_own_queue(lab)
    for name, value in environment_of(temporal).items():
        monkeypatch.setenv(name, value)
    names = {"mulligan-worker": at.task_queue, '"0.2.0"': '"b"', '"agents"': f'"{at.task_queue}"', "stock": "shop"}
    names["prompt="] = f'model="openai-chat:{at.task_queue}", prompt='
    at.model.script(at.task_queue, [DONE])
    program: dict[str, Any] = {}
    text = replaced(docs_block("docs/versions.md", "async def try_it"), names)
    exec(compile(text, "docs/versions.md", "exec", dont_inherit=True), program)
    async with worker_of("a", at, monkeypatch), worker_of("b", at, monkeypatch):
        await make_current(at.client, at.task_queue, "a")
        await at.run([DONE])
        await program["try_it"]()
        assert await builds_of(at.client.get_workflow_handle("try-0.2.0")) == {"b"}
    assert "completed" in capsys.readouterr().out
