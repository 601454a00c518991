"""The short form of `make exam`: tasks of one domain of tau²-bench, under one kill of each kind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.exam.exam_page import faults_of
from tests.exam.plan import VICTIMS, Sitting, chosen
from tests.exam.sitting import databases, sit
from tests.support.tau2_environment import tau2_python

DOMAIN, TASKS = "retail", 2
SECONDS_TO_INSTALL = 600  # the package index may be slow


@pytest.mark.timeout(SECONDS_TO_INSTALL)
async def test_tasks_have_their_expected_databases_after_mistakes_and_kills(tmp_path: Path) -> None:
    """Each effect is there once, and what the model was told is what the ledger says."""
    await tau2_python()
    lines: list[dict[str, Any]] = []
    async with databases(DOMAIN, tmp_path) as served:
        tasks = chosen(served.facts, TASKS)
        await sit(
            Sitting(DOMAIN, tasks, processes=2, pause=(0.1, 0.4), kills=len(VICTIMS)), served, tmp_path, lines.append
        )
    played = {line["task"]: [*faults_of(line)] for line in lines if "task" in line}
    assert played == {task: [] for task in tasks}
    assert sum(line["effects"] for line in lines if "task" in line) > 0
    assert sum(line["mistakes_told"] for line in lines if "task" in line) > 0
    assert Counter(line["killed"] for line in lines if "killed" in line).keys() == VICTIMS.keys()
