"""The types of results as pyright reads them. mypy checks the same file in `make lint`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_pyright(*files: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, *map(str, files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_pyright_sees_the_type_of_each_output(tmp_path: Path) -> None:
    """It also reports a wrong type: otherwise the first half of this test could not fail."""
    code, printed = run_pyright(ROOT / "tests/unit/test_typed_results.py")
    assert code == 0, printed
    wrong = tmp_path / "wrong.py"
    text = (ROOT / "tests/unit/test_typed_results.py").read_text()
    wrong.write_text(text.replace("assert_type(typed.output, Refund)", "assert_type(typed.output, Refusal)"))
    code, printed = run_pyright(wrong)
    assert (code, printed.count("error: ")) == (1, 1), printed
    assert 'expected "Refusal" but received "Refund"' in printed
