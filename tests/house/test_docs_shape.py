"""How-tos are short: a page is read in minutes, and each of its lines fits a screen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
OTHERS = {"Start", "Look it up", "Why"}
"""The groups of the index whose pages are read once, or searched."""
MOST_LINES, LONGEST = 120, 160
GROUPS = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", (DOCS / "index.md").read_text(), re.MULTILINE | re.DOTALL)
HOW_TOS = [page for group, links in GROUPS if group not in OTHERS for page in re.findall(r"\]\((.+?)\)", links)]


def test_the_index_has_the_groups_whose_pages_may_be_long() -> None:
    assert {group for group, _ in GROUPS} > OTHERS


@pytest.mark.parametrize("page", HOW_TOS)
def test_a_how_to_is_short(page: str) -> None:
    """Rows of tables and lines of code count, too."""
    lines = (DOCS / page).read_text().splitlines()
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > LONGEST] == []
