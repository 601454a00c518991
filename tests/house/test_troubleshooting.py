"""docs/troubleshooting.md: each heading is a text that the product has, and what follows it says where to read on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
ROOMS = "mulligan", "workflows", "activities", "tools"
SECTIONS = re.findall(r"^### ([^\n]+)\n\n(.+?)\s*(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
GAP = "\0"
"""Stands where a text has a value."""
FIELD = re.compile(r"%[.\d]*[sdfr]|(?<!\{)\{\w*\}")
"""A value in a text that is filled in elsewhere: of `logging`, of `str.format`."""


def text_of(node: ast.AST) -> str:
    """A literal's text, with a gap for each value in it; "" for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return FIELD.sub(GAP, text)
        case ast.JoinedStr(values=values):
            return "".join(str(each.value) if isinstance(each, ast.Constant) else GAP for each in values)
        case _:
            return ""


def literals() -> Iterator[str]:
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            yield from filter(None, map(text_of, ast.walk(ast.parse(file.read_text()))))


@cache
def texts() -> str:
    """All literals of the product, each twice: with gaps, and as it reads where its values are empty."""
    return "\n\1".join(text.replace("\n", " ") for each in literals() for text in {each, each.replace(GAP, "")})


def fixed_parts(heading: str) -> list[str]:
    return [part for part in heading.strip("`").strip().split("…") if part.strip(" .:,;(")]


def is_in_the_product(heading: str) -> bool:
    """Whether one literal has all fixed parts of the heading, in their order."""
    return re.search("[^\n]*?".join(map(re.escape, fixed_parts(heading))), texts()) is not None


@pytest.mark.parametrize("heading", [heading for heading, _ in SECTIONS])
def test_a_heading_is_a_text_of_the_product(heading: str) -> None:
    """It may end earlier, and has `…` where the text has a value."""
    assert heading.startswith("`")
    assert heading.endswith("`")
    assert sum(map(len, fixed_parts(heading))) >= 15
    assert is_in_the_product(heading)


def test_a_text_that_the_product_does_not_have_is_found() -> None:
    assert is_in_the_product("`no Temporal server answers at … (…). Start one with`")
    assert not is_in_the_product("`no Temporal server answers for … (…). Start one with`")
    assert not is_in_the_product("`Start one with … no Temporal server answers`")


def test_each_text_has_one_section_with_a_cause_and_a_link() -> None:
    headings = [heading for heading, _ in SECTIONS]
    assert len(headings) == PAGE.count("\n### ") >= 25
    assert len(set(headings)) == len(headings)
    for heading, text in SECTIONS:
        assert "](" in text, heading
        assert len(text.splitlines()) <= 4, heading
