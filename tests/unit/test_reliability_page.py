"""docs/reliability.md is written by two commands, each its part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import report
from tests.exam.exam_page import faults_of, write_exam

TASK = {
    "contender": "mulligan", "mistakes": True, "domain": "retail", "seed": 1, "commit": "abc", "task": 3, "status": "completed",
    "seconds": 1.0, "load": 1.0, "same_database": True, "reward": 1.0, "effects": 2, "of_attempts": 0, "repeated": 0,
    "unexpected": [], "lost": [], "steps": 9, "mistakes_told": 4, "lost_calls": 1, "invented": [], "denied": [],
}  # fmt: skip
KILL = {"contender": "mulligan", "mistakes": True, "domain": "retail", "seed": 1, "commit": "abc", "killed": "process"}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the page, which the commands write."""
    file = tmp_path / "reliability.md"
    file.write_text(report.PAGE.read_text())
    monkeypatch.setattr(report, "PAGE", file)
    return file


def test_each_command_keeps_what_the_other_has_written(page: Path, tmp_path: Path) -> None:
    before = page.read_text()
    write_exam([TASK, KILL])
    written = page.read_text()
    assert "| Mulligan | retail | yes | 1 | 1 | 2 | 0 (0) | 0 | 0 | 4 | 1 | 0 | 0 | 0 |" in written
    assert "| Mulligan | 1 | 0 | 0 | 0 | 1 |" in written
    begin, end = report.EXAM
    assert written.partition(begin)[0] == before.partition(begin)[0]
    assert written.partition(end)[2] == before.partition(end)[2]
    seed = {
        "seed": 7, "victim": "child", "commit": "def", "load": 1.0, "faults_injected": 3, "points": [], "runs": 8,
        "effects": 70, "spans": 90, "faults": [], "pauses": [["tool", 0.2]],
    }  # fmt: skip
    (tmp_path / "7.json").write_text(json.dumps(seed))
    report.write_page(tmp_path)
    again = page.read_text()
    assert "Seeds 7; commits def" in again
    assert of_others(again) == of_others(before) != []
    assert again.partition(begin)[2].partition(end)[0] == written.partition(begin)[2].partition(end)[0]


def of_others(page: str) -> list[str]:
    """The parts of the comparison and of the schedules, whose results Git does not have."""
    parts = [f"## {part.strip()}" for part in page.split("\n## ")]
    return [part.partition("\n\n<!--")[0] for part in parts if part.startswith((report.COMPARED, report.SCHEDULED))]


def test_without_any_results_the_page_stays_as_it_is(page: Path, tmp_path: Path) -> None:
    before = page.read_text()
    report.write_page(tmp_path)
    assert page.read_text().partition(report.COMPARED)[2] == before.partition(report.COMPARED)[2] != ""
    assert page.read_text().partition("\nSeeds ")[2] == before.partition("\nSeeds ")[2] != ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "stuck"},
        {"same_database": False},
        {"reward": 0.0},
        {"repeated": 1},
        {"of_attempts": 1},
        {"unexpected": ["pay {}"]},
        {"lost": ["pay {}"]},
        {"invented": ["c1_0"]},
        {"denied": ["c1_0"]},
    ],
)
def test_what_breaks_a_rule_of_the_exam_is_named_on_the_page(page: Path, wrong: dict[str, Any]) -> None:
    assert [*faults_of(TASK)] == []
    [fault] = faults_of({**TASK, **wrong})
    write_exam([{**TASK, **wrong}])
    assert f"- retail, task 3, seed 1: {fault}" in page.read_text()
