"""docs/recovery.md contains what the tests observed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.promise.recovery_matrix import INTRODUCTION, Row, section
from tests.promise.test_recovery import ROWS as CALLS
from tests.promise.test_structured_output import ROWS as OUTPUTS
from tests.support.lab import DONE, Lab
from tests.support.openai_turn import Turn

PAGE = Path(__file__).parents[2] / "docs/recovery.md"
CUT = Turn(calls=[("click", '{"selector": "#a"}', None), ("click", '{"selector": "#', None)], finish_reason="length")
SAME = ("click", '{"selector": "#a"}', "call_1")
ANSWERS = [
    Row("cut off by length inside of a call", turns=[CUT, DONE]),
    Row("the very same call twice", turns=[Turn(calls=[SAME, SAME]), DONE]),
    Row(
        "equal calls of a tool with `once`",
        turns=[Turn(calls=[("pay", '{"euros": 5}', None), ("pay", '{"euros": 5.0}', None)]), DONE],
        agent="till",
    ),
    Row("no text, no call", turns=[Turn(text=""), DONE]),
    Row("nothing, twice", turns=[Turn(text=""), Turn(text="")]),
    Row("cut off in the text", turns=[Turn(text="half an ans", finish_reason="length")]),
    Row("filtered", turns=[Turn(text="", finish_reason="content_filter")]),
    Row("a refusal", turns=[Turn(refusal="I will not.")]),
    Row("the guard says no", turns=[Turn(calls=[("click", '{"selector": "#b"}', None)]), DONE], agent="guarded"),
    Row(
        "a call in the text (`CallsInText`)",
        turns=[Turn(text='```json\n{"name": "click", "arguments": {"selector": "#a"}}\n```'), DONE],
        agent="wordy",
    ),
    Row("the same bad call again", turns=[Turn(calls=[("click", "{}", None)])] * 3 + [DONE]),
]


LIKE_OTHERS = {
    *("empty name", "dunder name", "long name", "not ascii name"),
    *(
        "object result",
        "generator result",
        "an exception as result",
        "hundreds of kilobytes, repaired",
        "nothing, twice",
    ),
    *("cut off in a list", "cut off between fields, written by the provider"),
    *("invalid, together with an ordinary call", "two, together with an ordinary call that fails"),
}
"""Rows that are tested, and would tell a reader what another one does."""
SECTIONS = {"Calls and tools": CALLS, "Answers": ANSWERS, "Structured output": OUTPUTS}


def sections() -> dict[str, str]:
    """The sections of the page by their titles; the introduction has the title ""."""
    parts = PAGE.read_text().split("\n## ")
    return {"": parts[0], **{part.split("\n")[0]: f"## {part}" for part in parts[1:]}}


def write(title: str, text: str) -> None:
    """Write a section of the page."""
    PAGE.write_text("\n".join({**sections(), title: text}.values()))


def test_the_recovery_page_has_its_introduction_and_sections(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--write-docs"):
        write("", INTRODUCTION)
    assert list(sections()) == ["", *SECTIONS]
    assert sections()[""] == INTRODUCTION
    assert {row.name for rows in SECTIONS.values() for row in rows} >= LIKE_OTHERS


@pytest.mark.parametrize("title", SECTIONS)
async def test_each_section_of_the_recovery_page_equals_what_the_tests_observed(
    lab: Lab, pytestconfig: pytest.Config, title: str
) -> None:
    printed = await section(lab, title, [row for row in SECTIONS[title] if row.name not in LIKE_OTHERS])
    if pytestconfig.getoption("--write-docs"):
        write(title, printed)
    assert sections()[title].rstrip("\n") == printed.rstrip("\n"), "run `make docs`"
