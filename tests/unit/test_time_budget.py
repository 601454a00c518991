"""When the time of CI is over, no further test begins, and the run says how many were left out."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.time_budget import VARIABLE

ROOT = Path(__file__).parents[2]
PLUGIN = "from tests.support.time_budget import add_time_budget\n\ndef pytest_configure(config):\n    add_time_budget(config)\n"


@pytest.mark.parametrize(
    ("end", "counted", "said"),
    [
        ("past", "2 skipped", "NOT RUN: 2 tests of 1 files"),
        ("future", "1 failed, 1 passed", None),
        (None, "1 failed, 1 passed", None),
    ],
)
def test_tests_begin_before_the_end_only(tmp_path: Path, end: str | None, counted: str, said: str | None) -> None:
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "test_it.py").write_text("def test_a(): pass\n\ndef test_b(tmp_path): assert False\n")
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment["PYTHONPATH"] = str(ROOT)
    if end is not None:
        environment[VARIABLE] = str(time.time() + (3600 if end == "future" else -1))
    options = ("-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path))
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert counted in ran.stdout.splitlines()[-1], ran.stdout
    assert (said in ran.stdout) if said else ("NOT RUN" not in ran.stdout)
