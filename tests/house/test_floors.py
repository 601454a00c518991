"""Each file of tests belongs to one floor, and each floor's target runs its folders."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.support.floors import FLOORS, WAITING

ROOT = Path(__file__).parents[2]
FILES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
FOLDERS = [folder for folders in FLOORS.values() for folder in folders]


def test_each_file_of_tests_belongs_to_exactly_one_floor() -> None:
    """One that no target runs is a rule that nothing holds; one that two run is paid twice."""
    assert len(FILES) > 200
    assert {
        name: found for name in FILES if len(found := [each for each in FOLDERS if name.startswith(f"{each}/")]) != 1
    } == {}
    assert [each for each in [*FOLDERS, *WAITING] if not (ROOT / each).is_dir()] == []
    assert {*WAITING} <= {*FOLDERS}


def test_files_of_tests_have_one_form_of_name() -> None:
    """pytest collects `*_test.py` too, which the table of durations and `make test-changed` do not look for."""
    assert [str(path) for path in (ROOT / "tests").rglob("*_test.py")] == []


@pytest.mark.parametrize("target", FLOORS)
def test_the_target_of_a_floor_runs_its_folders(target: str) -> None:
    """`make test` names none: it runs those of `testpaths`, as does pytest by itself."""
    [recipe] = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["testpaths"]
    lines = [line for line in recipe.splitlines() if " pytest " in line]
    assert lines
    for line in lines:
        assert (re.findall(r"tests/[\w/]+", line) or listed) == [*FLOORS[target]]
