"""tests/durations.json: written from what the processes of a run have measured, read for the order of tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.durations import Measured, merge, usual, walls, written

ROOT = Path(__file__).parents[2]
A, B, GONE, LIVE = "tests/unit/test_a.py", "tests/unit/test_b.py", "tests/unit/test_gone.py", "tests/live/test_c.py"


def test_what_was_measured_replaces_what_was_known_and_files_that_are_gone_are_dropped() -> None:
    """A file of which some tests were left out keeps what it had; a test is listed from half a second on, of whatever kind."""
    known = {"test": {name: {"cpu": 9.0, "wall": 9.0} for name in (A, B, GONE)}}
    measured: Measured = {
        f"{A}::one[x]": [0.04, 0.62],
        f"{A}::two": [0.3, 0.3],
        f"{B}::one": [1, 1],
        f"{LIVE}::one": [0.1, 0.1],
    }
    table = merge(known, measured, existing=[A, B, LIVE], partial=[B])
    assert table == {
        "test": {A: {"cpu": 0.3, "wall": 0.9, "tests": {"one[x]": [0.0, 0.6]}}, B: {"cpu": 9.0, "wall": 9.0}},
        "test-live": {LIVE: {"cpu": 0.1, "wall": 0.1}},
    }
    assert json.loads(written(table)) == table
    assert (walls(table), usual(table)) == ({A: 0.9, B: 9.0, LIVE: 0.1}, 0.9)


def test_the_controlling_process_writes_what_all_processes_have_measured(tmp_path: Path) -> None:
    """Those of children too, for which a test has waited."""
    folder = tmp_path / "tests/unit"
    folder.mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    busy = "import subprocess, sys\ndef test_busy():\n    subprocess.run([sys.executable, '-c', 'sum(range(10**7))'])\n"
    (folder / "test_a.py").write_text(busy)
    (folder / "test_b.py").write_text("def test_quick(): ...\ndef test_other(): ...\n")
    (tmp_path / "tests/durations.json").write_text(json.dumps({"test": {B: {"cpu": 7.0, "wall": 8.0}}}))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "tests.support.durations", "-k", "not other"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    table = json.loads((tmp_path / "tests/durations.json").read_text())
    assert table["test"].keys() == {A, B}
    assert table["test"][A]["cpu"] > 0
    assert table["test"][B] == {"cpu": 7.0, "wall": 8.0}
