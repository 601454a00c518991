"""Forks of runs that are encrypted, whose content is stored, or whose predecessors are gone."""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest

from mulligan import ResumeError, connect, fork_run
from mulligan.client.unless_missing import MISSING_OR_INVALID, unless_missing
from mulligan.devserver import DevServer
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.live.test_content import painters, photo
from tests.support.compaction_agents import PROMPT, READ, reading
from tests.support.lab import DONE, Lab, Ran

KEYS = f"a:{base64.b64encode(bytes(range(32))).decode()}"


async def check_forks(lab: Lab, ran: Ran) -> None:
    """Fork a run at each of its steps: each sends the step's request."""
    assert ran.result["status"] == "completed"
    for step, sent in enumerate(ran.requests, 1):
        before = len(lab.model.requests_of(ran.id))
        forked = await fork_run(lab.client, ran.id, at=step)
        assert (await forked.result())["status"] == "completed"
        assert lab.model.requests_of(ran.id)[before].body == sent.body, step


@pytest.mark.parametrize("keys", ["", KEYS], ids=["open", "encrypted"])
async def test_content_by_reference_is_shared(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    """A fork stores nothing of it again."""
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path))
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", keys)
    async with painters(lab) as at:
        ran = await at.run([photo(0), photo(1), DONE], agent="painter")
        stored = {path for path in tmp_path.rglob("*") if path.is_file()}
        await check_forks(at, ran)
        assert {path for path in tmp_path.rglob("*") if path.is_file()} == stored


@pytest.mark.parametrize("keys", ["", KEYS], ids=["open", "encrypted"])
async def test_a_run_in_external_storage_is_forked(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    """Its conversation is larger than a payload may be."""
    monkeypatch.setenv("MULLIGAN_EXTERNAL_STORAGE", tmp_path.as_uri())
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", keys)
    prompt = json.dumps([uuid.uuid4().hex for _ in range(90_000)])
    async with painters(lab) as at:
        ran = await at.run([photo(0), DONE], agent="painter", prompt=prompt)
        await check_forks(at, ran)


async def test_a_step_in_a_deleted_predecessor_is_refused_and_later_ones_are_forked(
    lab: Lab, chain_server: DevServer
) -> None:
    client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"gone-{uuid.uuid4().hex[:6]}")
    async with running_worker(client, load(["tests.support.compaction_agents"]), lab.telemetry, at.task_queue):
        ran = await at.run(reading(14), agent="page_reader", prompt=PROMPT)
        newest = (await ran.handle.describe()).run_id
        runs = [each.run_id async for each in client.list_workflows(f"WorkflowId = '{ran.id}'")]
        assert len(runs) > 1
        for run_id in set(runs) - {newest}:
            gone = WorkflowExecution(workflow_id=ran.id, run_id=run_id)
            request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=gone)
            await client.workflow_service.delete_workflow_execution(request)
            handle = client.get_workflow_handle(ran.id, run_id=run_id)
            while await unless_missing(handle.describe(), MISSING_OR_INVALID) is not None:
                pass
        refused = rf"Step 1 lies in the workflow run '.*' of '{ran.id}', whose retention is over; choose a later"
        with pytest.raises(ResumeError, match=refused):
            await fork_run(client, ran.id, at=1, new_id=f"none-{ran.id}")
        assert await unless_missing(client.get_workflow_handle(f"none-{ran.id}").describe()) is None
        forked = await fork_run(client, ran.id)
        assert (await forked.result())["status"] == "completed"
        assert READ[forked.id] == []
