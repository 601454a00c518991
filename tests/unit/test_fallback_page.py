"""The examples of docs/fallback.md and docs/costs.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from mulligan.prices import Prices

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_example_of_fallback_passes(tmp_path: Path) -> None:
    """Run by pytest, as a user would."""
    [block] = re.findall(r"```python\n(import pytest.*?)```", (DOCS / "fallback.md").read_text(), re.DOTALL)
    (tmp_path / "test_page.py").write_text(block)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"],
        cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{block.count('def test_')} passed" in ran.stdout


def test_the_price_file_of_the_page_can_be_loaded(tmp_path: Path) -> None:
    [table] = re.findall(r"```json\n(.*?)```", (DOCS / "costs.md").read_text(), re.DOTALL)
    file = tmp_path / "prices.json"
    file.write_text(table)
    prices = Prices.load(str(file))
    for name, price in json.loads(table)["models"].items():
        found = prices.of(name if ":" in name else f"openai:{name}")
        assert found is not None
        assert found.input == price["input"]
