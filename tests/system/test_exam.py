"""The short form of `make exam`: tasks of tau²-bench under kills of each kind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.exam.exam_page import faults_of
from tests.exam.plan import VICTIMS, Sitting, chosen
from tests.exam.sitting import databases, sit
from tests.support.tau2_environment import tau2_python

TASKS = {"telecom": 3, "retail": 2}
SECONDS_TO_INSTALL = 600  # the package index may be slow


@pytest.mark.timeout(SECONDS_TO_INSTALL)
@pytest.mark.parametrize("domain", TASKS)
async def test_tasks_have_their_expected_databases_after_mistakes_and_kills(domain: str, tmp_path: Path) -> None:
    """Each effect is there once, and what the model was told is what the ledger says."""
    await tau2_python()
    lines: list[dict[str, Any]] = []
    async with databases(domain, tmp_path) as served:
        tasks = chosen(served.facts, TASKS[domain])
        await sit(Sitting(domain, tasks, processes=2, pause=(0.3, 1.0), kills=6), served, tmp_path, lines.append)
    played = {line["task"]: [*faults_of(line)] for line in lines if "task" in line}
    assert played == {task: [] for task in tasks}
    assert sum(line["effects"] for line in lines if "task" in line) > 0
    assert sum(line["mistakes_told"] for line in lines if "task" in line) > 0
    assert Counter(line["killed"] for line in lines if "killed" in line).keys() == VICTIMS.keys()
