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

from mulligan.cli._steps import short
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
    return {
        char for char in text if unicodedata.category(char) in HIDDEN and not "\U000110bd" <= char < "\U000e0000"
    } - set(keep)


FLAGS = [
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(each)) for each in code) + "\U000e007f"
    for code in ("gbeng", "gbsct", "usca")
]
TAGS = st.text("\U0001f3f4\U000e0001\U000e0020\U000e0067\U000e0062\U000e0065\U000e007f\u200d\u200ca\u0645\u202e")


def without_flags(text: str) -> str:
    return re.sub("\U0001f3f4[\U000e0030-\U000e007a]{3,6}\U000e007f", "", text)


@pytest.mark.parametrize(
    "text",
    ["\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "PDF\u200c\u0647\u0627", "\u0915\u094d\u200d\u0937", "\u0930\u094d\u200d ",
     "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\u2764\ufe0f\u200d\U0001f525", *FLAGS, "".join(FLAGS)],
)  # fmt: skip
def test_joiners_and_flags_are_displayed(text: str) -> None:
    """Persian, Hindi, emoji of families, England and Scotland; not a flag of which the end is cut off."""
    assert printable(text) == printable_lines(text) == text
    assert short(text) == text.strip()
    for longest in range(1, len(text)):
        assert hidden(without_flags(short(text, longest)), "\u200c\u200d") == set()


@given(TAGS)
def test_tags_are_displayed_in_flags_only_and_joiners_beside_other_scripts_only(text: str) -> None:
    for cleaned, keep in ((printable(text), "\u200c\u200d"), (printable_lines(text), VISIBLE)):
        assert hidden(without_flags(cleaned), keep) == set()
    assert printable(printable(text)) == printable(text)
    assert printable("admin\u200d\u200c") == "admin\\u200d\\u200c"


@given(TEXTS)
def test_a_text_has_no_control_character_and_does_not_change_again(text: str) -> None:
    line = printable(text)
    assert "".join(char for char in without_flags(line) if char not in "\u200c\u200d").isprintable()
    assert printable(line) == line
    lines = printable_lines(text)
    assert hidden(without_flags(lines), "\n\t" + VISIBLE) == set()
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
        ("\x1b[38;5;8mgrey\x1b[1;48;5;8;4m", "\x1b[38;5;8mgrey\x1b[1;48;5;8;4m"),
        ("\x1b[38;2;8;8;8m\x1b[48:2::8:8:8m\x1b[38:5:8m", "\x1b[38;2;8;8;8m\x1b[48:2::8:8:8m\x1b[38:5:8m"),
        ("\x1b[38;5;8;8m\x1b[38;8m\x1b[038;5;8m\x1b[8:0m", "\\x1b[38;5;8;8m\\x1b[38;8m\\x1b[038;5;8m\\x1b[8:0m"),
        ("\x1b[38;2;1;2;8m\x1b[38;2;1;2;3;8m\x1b[58;5;8m", "\x1b[38;2;1;2;8m\\x1b[38;2;1;2;3;8m\\x1b[58;5;8m"),
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


@pytest.mark.parametrize(
    "part", ["8;", "38;5;", "38;2;1;", "1;", ";", "0", ":", "48:2:", "\x1b[", "\x1b[38;5;8;", "\x1b[1"]
)
def test_a_long_sequence_takes_linear_time(part: str) -> None:
    """The test would not end otherwise."""
    file = io.StringIO()
    text = "\x1b[" + part * (100_000 // len(part))
    cast("Any", SafeStream(file)).write(text)
    assert file.getvalue() == printable_lines(text)


@given(
    st.lists(st.sampled_from(["1", "4", "8", "08", "31", "5", "2", "38;5;8", "48;5;200", "38;2;8;8;8", "48;2;0;8;255"]))
)
def test_a_sequence_is_passed_on_unless_it_hides_text(codes: list[str]) -> None:
    """The numbers of colours are not styles."""
    file = io.StringIO()
    sequence = f"\x1b[{';'.join(codes)}m"
    cast("Any", SafeStream(file)).write(sequence)
    assert (file.getvalue() == sequence) is {"8", "08"}.isdisjoint(codes)
