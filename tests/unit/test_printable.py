"""Control characters become visible: in texts of one line, of several lines, and in JSON, which stays the same value."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from mulligan.cli._terminal import SafeConsole, SafeStream
from mulligan.schema.printable import json_line, printable, printable_lines

CONTROLS = "".join(
    map(chr, [*range(0x20), *range(0x7F, 0xA0), 0xAD, 0x61C, 0x200B, 0x200E, 0x202E, 0x2066, 0x2028, 0xFEFF])
)
SEQUENCES = [
    "\x1b]52;c;cm0=\x07",
    "\x1b[2J",
    "\x1b[8m",
    "\x9b2J",
    "\x1b]8;;http://x\x1b\\",
    "\r\n",
    "\U000e0041",
    "\ud800",
]
TEXTS = st.lists(st.one_of(st.sampled_from([*CONTROLS, *SEQUENCES, "\\", "\\x1b"]), st.text())).map("".join)
HIDDEN = ("Cc", "Cf", "Zl", "Zp", "Cs")
VISIBLE = "\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"
"""What Persian, Arabic and emoji need, though it is a format character."""


def hidden(text: str, keep: str = "") -> set[str]:
    """The characters of a text that a terminal interprets or hides; those of rare scripts and of notes in music do not count."""
    return {char for char in text if unicodedata.category(char) in HIDDEN and char < "\U000110bd"} - set(keep)


@given(TEXTS)
def test_a_text_has_no_control_character_and_does_not_change_again(text: str) -> None:
    line = printable(text)
    assert line.isprintable()
    assert printable(line) == line
    lines = printable_lines(text)
    assert hidden(lines, "\n\t" + VISIBLE) == set()
    assert printable_lines(lines) == lines
    lines.encode()


@given(st.text(st.characters(categories=["L", "M", "N", "P", "S", "Zs"]) | st.sampled_from("\n\t\u200d\u200c")))
def test_a_text_without_control_characters_does_not_change(text: str) -> None:
    """No-break spaces, the spaces of Chinese and Japanese, joined emoji."""
    assert printable_lines(text) == text


@given(st.recursive(TEXTS | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)))
def test_json_is_the_same_value_on_one_line(value: Any) -> None:
    line = json_line(value)
    assert hidden(line, VISIBLE) == set()
    assert json.loads(line) == json.loads(json.dumps(value))


@given(TEXTS, st.sampled_from(["", "bold red"]))
def test_a_console_adds_no_control_sequences_but_those_of_its_styles(text: str, style: str) -> None:
    """Whatever a new command prints, as a text or as a rich object."""
    console = SafeConsole()
    console.file = file = io.StringIO()
    console.print(text, Text(text, style), style=style)
    assert hidden(re.sub(r"\x1b\[(0|1|31|1;31)m", "", file.getvalue()), "\n\t" + VISIBLE) == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[2J\x1b]0;t\x07", "\\x1b[2J\\x1b]0;t\\x07"),
        ("\x9b31m\u202e\x7f", "\\x9b31m\\u202e\\x7f"),
        ("\x1b[", "\\x1b["),
        ("\x1b[38;5;200mred\x1b[1;08m\x1b[8m\x1b[m", "\x1b[38;5;200mred\\x1b[1;08m\\x1b[8m\x1b[m"),
    ],
)
def test_of_other_output_only_colours_are_passed_on(text: str, expected: str) -> None:
    """Stack traces, warnings, usage errors, libraries."""
    file = io.StringIO()
    stream = cast("Any", SafeStream(file))
    assert stream.write(text) == len(text)
    stream.writelines([text])
    print(text, file=stream, end="", flush=True)
    assert file.getvalue() == expected * 3
