"""Recorded histories replay: a run in flight survives a deploy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from mulligan import data_converter
from mulligan.worker.loading import load
from mulligan.worker.wiring import sandbox
from mulligan.workflows.agent_workflow import AgentWorkflow
from mulligan.workflows.batch.batch_collector import BatchCollector
from mulligan.workflows.batch.batch_workflow import BatchWorkflow
from mulligan.workflows.budgets.budget_workflow import TenantBudget
from tests.support.sandboxed_workflow import Sandboxed

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


def test_there_are_recorded_histories() -> None:
    assert len(HISTORIES) >= 50


@pytest.mark.parametrize("agent_workflow", [AgentWorkflow, Sandboxed])
@pytest.mark.parametrize("file", HISTORIES, ids=lambda file: file.stem)
async def test_each_recorded_history_replays_with_and_without_the_sandbox(
    file: Path, agent_workflow: type[AgentWorkflow]
) -> None:
    """The current code issues the commands that were recorded. Workers run it without the sandbox."""
    data = json.loads(file.read_text())
    loaded = load(["tests.support.sequential_turns_workflow"])
    replayer = Replayer(
        workflows=[agent_workflow, BatchCollector, BatchWorkflow, TenantBudget, *loaded.workflows],
        workflow_runner=sandbox(loaded),
        data_converter=data_converter,
    )
    await replayer.replay_workflow(WorkflowHistory.from_json(data.pop("workflow_id"), data))
