"""`.ci/run`: its last line is the sum of what its stages count, and no failure is lost."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
STAGES = runpy.run_path(str(ROOT / ".ci/stages.py"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("7219 passed, 20 skipped in 250.00s (0:04:09)", {"passed": 7219, "skipped": 20}),
        ("1 failed, 2 passed, 1 xfailed, 1 error in 0.51s", {"failed": 1, "passed": 2, "xfailed": 1, "errors": 1}),
        ("=== 2 failed, 3 errors in 1.00s ===", {"failed": 2, "errors": 3}),
        ("296 of 8,632 tests, 15 s, about 11 min left", {}),
        ("docs: 12 passed on in 3.0s ago", {}),
    ],
)
def test_summaries_are_read(line: str, expected: dict[str, int]) -> None:
    assert STAGES["counts"]([line + "\n"]) == expected


def test_the_sum_reads_like_a_summary() -> None:
    whole = STAGES["counts"](
        ["3 passed in 1.00s\n", "some output\n", "1 failed, 4 passed, 1 error in 70.00s (0:01:10)\n"]
    )
    assert STAGES["sum_of"](whole, 3725.4) == "1 failed, 7 passed, 1 error in 3725.40s (1:02:05)"
    assert STAGES["counts"]([STAGES["sum_of"](whole, 3725.4)]) == whole


def test_each_stage_is_a_target_and_all_floors_are_stages() -> None:
    """README's test command is the last one, by itself."""
    groups = (STAGES["FIRST"], STAGES["SIDE_BY_SIDE"], STAGES["LAST"])
    stages = [stage.split()[0] for queues in groups for queue in queues for stage in queue]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*stages} <= {*targets}
    assert {"lint", "docs-site", "test-sdk", "test", "test-live", "test-system"} <= {*stages}
    assert STAGES["LAST"] == (("test",),)


def test_the_jobs_on_github_are_the_stages() -> None:
    """All but the one that tries other versions of the SDK, of which there are none as long as one was tried."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    floors = {*matrix["floor"], *(each["floor"] for each in matrix["include"])}
    groups = (STAGES["FIRST"], STAGES["SIDE_BY_SIDE"], STAGES["LAST"])
    assert floors == {stage for queues in groups for queue in queues for stage in queue if "sdk" not in stage}


@pytest.mark.parametrize(("made", "code", "last"), [("@echo '3 passed in 1.00s'", 0, "passed"), ("@false", 1, "error")])
def test_a_stage_that_fails_fails_the_run_and_the_others_still_run(
    tmp_path: Path, made: str, code: int, last: str
) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci/stages.py").write_text((ROOT / ".ci/stages.py").read_text())
    others = "test-system docs-site test-live test-sdk test"
    (tmp_path / "Makefile").write_text(f"lint:\n\t{made}\n{others}:\n\t@echo '2 passed, 1 skipped in 0.10s'\n")
    ran = subprocess.run([sys.executable, ".ci/stages.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == code, ran.stdout
    counted: Counter[str] = STAGES["counts"]([ran.stdout.splitlines()[-1]])
    assert counted["skipped"] == 5
    assert counted == Counter(passed=13 if code == 0 else 10, skipped=5, errors=code)
    assert last in ran.stdout.splitlines()[-1]
