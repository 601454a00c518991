"""The order in which several processes run the files of tests: no test is lost, and no process ends long after the others."""

from __future__ import annotations

from pathlib import Path

from tests.support.schedule import FIRST, SHARED, in_order

ROOT = Path(__file__).parents[2]


def test_waiting_files_come_in_turns_with_computing_files_and_the_long_ones_first() -> None:
    """The named files exist. Files that share rows stay together and count together, an unknown one as the usual one; no test is lost."""
    for file in (*FIRST, *SHARED, *SHARED.values()):
        assert (ROOT / file).is_file()
    page = "tests/promise/test_recovery_page.py"
    files = [
        *FIRST, "tests/unit/test_b.py", "tests/unit/test_d.py",
        page, "tests/promise/test_recovery.py", "tests/unit/test_a.py", "tests/unit/test_e.py",
        "tests/acceptance/test_a.py", "tests/unit/test_c.py",
        "tests/live/test_new.py",
        "tests/live/test_zz.py",
    ]  # fmt: skip
    seconds = {
        "test_b": 9, "test_d": 8, "test_e": 4, "test_c": 0.1, "test_recovery_page": 6, "test_recovery": 7, "test_zz": 1,
        "test_memory_size": 0, "test_step_costs": 0.2,
    }  # fmt: skip
    known = {f"tests/unit/{name}.py": {"wall": each} for name, each in seconds.items()}
    known |= {file: {"wall": seconds[Path(file).stem]} for file in files if Path(file).stem in seconds}
    known |= {"tests/unit/test_a.py": {"wall": 5}, "tests/acceptance/test_a.py": {"wall": 12}}
    expected = [f"{file}::{test}" for file in files for test in ("one", "two")]
    assert in_order(sorted(expected), {"all": known}) == expected
