"""How-tos are short: a page is read in minutes, and each of its lines fits a screen. All pages together do not grow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
OTHERS = {"Start", "Look it up", "Why"}
"""The groups of the index whose pages are read once, or searched."""
MOST_LINES, LONGEST = 120, 160
MOST_WORDS = 57_586
"""Of all pages but the reference and the decisions: three quarters of what they had before they were ordered by job."""
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


def prose(page: Path) -> str:
    """A page without its code and its comments."""
    return re.sub(r"^ *```.*?^ *```|<!--.*?-->", " ", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_a_new_sentence_takes_the_place_of_another_one() -> None:
    """Cut what another page says, what nobody needs, and reasons: those belong to a decision."""
    words = {page.name: len(prose(page).split()) for page in DOCS.glob("*.md")}
    assert sum(words.values()) <= MOST_WORDS, sorted(words.items(), key=lambda each: -each[1])[:20]
