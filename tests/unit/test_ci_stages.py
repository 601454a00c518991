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
        ("\x1b[32m\x1b[1m2 passed\x1b[0m, \x1b[31m1 failed\x1b[0m\x1b[32m in 0.51s\x1b[0m", {"passed": 2, "failed": 1}),
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
    stages.append(STAGES["AGAIN"])
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*stages} <= {*targets}
    assert {"lint", "docs-site", "test-sdk", "test", "test-live", "test-system"} <= {*stages}
    assert STAGES["LAST"] == (("test",),)


def test_the_jobs_on_github_are_the_stages() -> None:
    """All but `programs`, which a job builds for itself, and the one that tries other versions of the SDK, as long as one was."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    floors = {*matrix["floor"], *(each["floor"] for each in matrix["include"])}
    groups = (STAGES["FIRST"], STAGES["SIDE_BY_SIDE"], STAGES["LAST"])
    stages = {stage.split()[0] for queues in groups for queue in queues for stage in queue}
    assert floors == stages - {"programs", "test-sdk"}


@pytest.mark.parametrize(("made", "code", "last"), [("@echo '3 passed in 1.00s'", 0, "passed"), ("@false", 1, "error")])
def test_a_stage_that_fails_fails_the_run_and_the_others_still_run(
    tmp_path: Path, made: str, code: int, last: str
) -> None:
    ran = run_stages(tmp_path, made)
    assert ran.returncode == code, ran.stdout
    counted: Counter[str] = STAGES["counts"]([ran.stdout.splitlines()[-1]])
    assert counted["skipped"] == 6
    assert counted == Counter(passed=15 if code == 0 else 12, skipped=6, errors=code)
    assert last in ran.stdout.splitlines()[-1]


def test_an_error_outside_of_the_stages_fails_the_run(tmp_path: Path) -> None:
    """Here the sum of a stage cannot be made, in the thread of the other floors."""
    broken = 'def run_stage(stage: str, longest: float = LONGEST) -> Counter[str]:\n    1 / (stage != "docs-site")'
    ran = run_stages(
        tmp_path,
        "@echo '3 passed in 1.00s'",
        ("def run_stage(stage: str, longest: float = LONGEST) -> Counter[str]:", broken),
    )
    assert ran.returncode == 1
    assert "ZeroDivisionError" in ran.stderr


def test_a_process_that_a_stage_leaves_behind_does_not_hold_up_the_run(tmp_path: Path) -> None:
    ran = run_stages(tmp_path, "@sleep 1000 & echo $$! > left; echo '3 passed in 1.00s'")
    assert ran.returncode == 0, ran.stdout
    left = Path(f"/proc/{(tmp_path / 'left').read_text().strip()}/cmdline")
    assert not left.exists() or b"sleep" not in left.read_bytes()


def test_a_stage_that_hangs_is_an_error_and_what_it_has_said_is_shown(tmp_path: Path) -> None:
    ran = run_stages(tmp_path, "@echo 'test_it began'; sleep 1000", ("LONGEST = 4200", "LONGEST = 1"))
    assert ran.returncode == 1
    assert "test_it began\nlint: FAILED (not ended after 1 s)" in ran.stdout
    assert "1 error" in ran.stdout.splitlines()[-1]


FAILS = """@echo 'tests/a.py::test_b[c d]' >> $$FAILED_TESTS_FILE; echo '1 failed, 2 passed in 1.00s'; false"""


@pytest.mark.parametrize(
    ("made", "alone", "counted"),
    [
        (FAILS, "1 passed", Counter(passed=15, skipped=6)),
        (FAILS, "1 failed", Counter(failed=1, passed=14, skipped=6)),
        (FAILS, "1 skipped", Counter(failed=1, passed=14, skipped=6)),
        (FAILS.replace("1 failed", "2 failed"), "1 passed", Counter(failed=2, passed=14, skipped=6)),
        (FAILS.replace("1 failed", "1 failed, 1 error"), "1 passed", Counter(failed=1, errors=1, passed=14, skipped=6)),
        (f"@for n in $$(seq 13); do {FAILS[1:].replace(' false', '')} done; false",
         "13 passed", Counter(failed=13, passed=38, skipped=6)),
    ],
    ids=["passes alone", "fails again", "is skipped", "another stage failed, too", "an error has no test", "too many"],
)  # fmt: skip
def test_a_few_tests_that_failed_run_again_alone(tmp_path: Path, made: str, alone: str, counted: Counter[str]) -> None:
    ran = run_stages(tmp_path, made, again=f"echo '{alone} in 0.10s'")
    assert STAGES["counts"]([ran.stdout.splitlines()[-1]]) == counted, ran.stdout
    are_all_right = not counted["failed"] + counted["errors"]
    assert ran.returncode == (0 if are_all_right else 1)
    assert ("FAILED BESIDE OTHERS, PASSED ALONE: tests/a.py::test_b[c d]\n" in ran.stdout) == are_all_right


def test_the_tests_that_run_again_are_the_ones_that_failed(tmp_path: Path) -> None:
    """With pytest itself: an id has spaces, a fixture fails."""
    tests = tmp_path / "test_it.py"
    tests.write_text(
        "import os, pytest\n"
        "@pytest.mark.parametrize('x', ['a b', 'c'])\n"
        "def test_a(x): assert x == 'c' or 'FAILED_TESTS_FILE' not in os.environ\n"
        "@pytest.fixture\n"
        "def broken(): assert 'FAILED_TESTS_FILE' not in os.environ\n"
        "def test_b(broken): pass\n"
    )
    plugin = "from tests.support.failed_tests import add_failed_tests as pytest_configure\n"
    (tmp_path / "conftest.py").write_text(plugin)
    pytest_here = f"PYTHONPATH={ROOT} {sys.executable} -m pytest -q -p no:cacheprovider -c {tmp_path}/pytest.ini"
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    ran = run_stages(tmp_path, f"@{pytest_here} test_it.py", again=f"{pytest_here} $(ARGS)")
    assert ran.returncode == 0, ran.stdout
    assert "\n2 passed in" in ran.stdout
    assert (
        "PASSED ALONE: test_it.py::test_a[a b]\nFAILED BESIDE OTHERS, PASSED ALONE: test_it.py::test_b\n" in ran.stdout
    )


def run_stages(
    folder: Path, made: str, replaced: tuple[str, str] = ("", ""), again: str = "false"
) -> subprocess.CompletedProcess[str]:
    """The script, in a project whose first stage is `made`."""
    script = (ROOT / ".ci/stages.py").read_text()
    assert replaced[0] in script
    (folder / ".ci").mkdir()
    (folder / ".ci/stages.py").write_text(script.replace(*replaced, 1) if replaced[0] else script)
    others = "programs test-system docs-site test-live test-sdk test"
    (folder / "Makefile").write_text(
        f"lint:\n\t{made}\n{others}:\n\t@echo '2 passed, 1 skipped in 0.10s'\ntest-again:\n\t@{again}\n"
    )
    return subprocess.run([sys.executable, ".ci/stages.py"], cwd=folder, capture_output=True, text=True, check=False)
