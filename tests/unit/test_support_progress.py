"""The progress line with and without a terminal, and the output of pytest beside it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.progress import Progress
from tests.support.schedule import FIRST, SHARED, in_order

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests.support.progress import Progress
import pytest

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if config.option.numprocesses:
        config.pluginmanager.register(Progress(config.pluginmanager.getplugin("terminalreporter")))
"""
TESTS = """
import pytest

@pytest.fixture
def broken():
    yield
    raise OSError("at the end")

def test_good(): pass
def test_bad(): assert 1 == 2
def test_left_out(): pytest.skip("not here")
def test_broken(broken): pass
@pytest.mark.xfail(strict=True)
def test_known(): assert 0
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Screen:
    """The used part of pytest's terminal reporter."""

    def __init__(self, isatty: bool) -> None:
        self.isatty = isatty
        self.lines: list[str] = []

    def rewrite(self, line: str, erase: bool) -> None:
        self.lines.append(f"\r{line}")

    def line(self, text: str) -> None:
        self.lines.append(f"\n{text}")

    def flush(self) -> None:
        """There is no buffer here."""

    def write_line(self, line: str) -> None:
        self.lines.append(line)


def run(progress: Progress, clock: Clock, nodeid: str, seconds: float, outcome: Any = "passed") -> None:
    for when in ("setup", "call", "teardown"):
        clock.now += seconds if when == "call" else 0
        progress.pytest_runtest_logreport(
            pytest.TestReport(
                nodeid, (nodeid, 0, ""), {}, outcome if when == "call" else "passed", None, when,
                duration=seconds if when == "call" else 0,
            )
        )  # fmt: skip


def test_without_a_terminal_progress_is_printed_every_fifteen_seconds() -> None:
    """The remaining time is estimated from earlier tests of the same folder, and does not jump when one takes long."""
    clock, screen = Clock(), Screen(isatty=False)
    progress = Progress(screen, clock)  # type: ignore[arg-type]
    live = [f"tests/live/test_a.py::test[{n}]" for n in range(40)]
    for _ in range(2):  # each process reports its collection
        progress.pytest_xdist_node_collection_finished(
            [*live, *[f"tests/unit/test_b.py::test[{n}]" for n in range(1000)]]
        )
    for nodeid in live[:20]:
        run(progress, clock, nodeid, 1)
    # 20 more of a second each, and 1,000 of the usual duration
    assert screen.lines == ["15 of 1,040 tests, 15 s, about 55 s left"]
    run(progress, clock, live[20], 50, "failed")
    assert screen.lines[1:] == [f"FAILED {live[20]}", "21 of 1,040 tests, 1 failed, 1 min 10 s, about 53 s left"]
    progress.pytest_sessionfinish()
    assert len(screen.lines) == 4


def test_on_a_terminal_progress_is_one_line_that_is_rewritten() -> None:
    """Other output gets its own line."""
    clock, screen = Clock(), Screen(isatty=True)
    progress = Progress(screen, clock)  # type: ignore[arg-type]
    progress.pytest_xdist_node_collection_finished([f"tests/unit/test_b.py::test[{n}]" for n in range(4)])
    run(progress, clock, "tests/unit/test_b.py::test[0]", 0.1)
    run(progress, clock, "tests/unit/test_b.py::test[1]", 0.3)
    run(progress, clock, "tests/unit/test_b.py::test[2]", 0.01, "failed")
    assert screen.lines == ["\r2 of 4 tests, 0 s", "\rFAILED tests/unit/test_b.py::test[2]", "\n"]


def test_failures_are_named_at_once_and_printed_in_full_below(tmp_path: Path) -> None:
    """There are no dots, and the last line is pytest's."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider", "-o", "console_output_style=classic"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stdout + ran.stderr
    above, _, below = ran.stdout.partition("=== ERRORS ===")
    assert "FAILED test_some.py::test_bad\nFAILED test_some.py::test_broken (teardown)\n" in above
    assert "5 of 5 tests, 2 failed, " in above
    assert not any(re.fullmatch(r"[.FsxE]+", line) for line in above.splitlines())
    assert "assert 1 == 2" in below
    assert re.fullmatch(
        r"1 failed, 2 passed, 1 skipped, 1 xfailed, 1 error in [\d.]+s( \(.*\))?", ran.stdout.splitlines()[-1]
    ), ran.stdout


def test_waiting_files_come_in_turns_with_computing_files_and_the_long_ones_first() -> None:
    """The named files exist. Files that share rows stay together, and no test is lost."""
    for file in (*FIRST, *SHARED, *SHARED.values()):
        assert (ROOT / file).is_file()
    page = "tests/live/test_recovery_page.py"
    long = FIRST[1]
    assert long != page
    files = [
        f"{FIRST[0]}", long, "tests/unit/test_a.py", "tests/unit/test_b.py",
        "tests/unit/test_c.py", "tests/unit/test_d.py", "tests/unit/test_e.py",
        page, "tests/live/test_recovery.py",
        "tests/acceptance/test_a.py", "tests/live/test_zz.py",
    ]  # fmt: skip
    expected = [f"{file}::{test}" for file in files for test in ("one", "two")]
    assert in_order(sorted(expected)) == expected
