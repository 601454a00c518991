"""docs/what-if.md and then docs/scores.md, done as they say: files are written, commands run in order, and print what is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.test_tutorial import ROOT, Terminals

BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    opened = Terminals(tmp_path)
    yield opened
    for name in ("worker", "dev"):
        opened.stop(name)


def test_the_pages_can_be_followed_to_their_end(terminals: Terminals) -> None:
    """Each `text` block has lines of what the command before printed; `…` stands for anything."""
    page = "".join((ROOT / f"docs/{name}.md").read_text() for name in ("what-if", "scores"))
    files = iter(re.findall(r"in\s+`(\w+\.py)`[,;:]", page, re.IGNORECASE))
    terminals.environment["UV_PROJECT"] = str(ROOT)
    terminals.environment["UV_NO_SYNC"] = "1"
    printed, count = "", 0
    for language, text in BLOCK.findall(page):
        count += 1
        if language == "python":
            (terminals.folder / next(files)).write_text(text)
        elif language == "sh":
            printed = terminals.type(text)
            print(f"$ {text}{printed}")
        elif language == "json":
            json.loads(text)
        else:
            for line in text.splitlines():
                pattern = r"[^\n]*".join(re.escape(part) for part in line.split("…"))
                assert re.search(pattern, printed), f"{line!r} is not in:\n{printed}"
    assert count > 15
    rows = json.loads((terminals.folder / "before.json").read_text())["rows"]
    assert [(row["outcome"], row["score"]) for row in rows] == [("same", 1.0)]
