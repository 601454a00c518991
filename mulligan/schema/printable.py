r"""Makes the control characters of texts by others visible, for terminals and logs.

A model, a tool, a provider or another person may have written what is printed. It must not write to the clipboard, set the
title, clear the screen, change the order of characters, or begin a line that looks like ours. An escape is written as in
Python: `\x1b`, `\u202e`. A backslash in the text stays as it is, so that a text without such characters does not change.
"""

from __future__ import annotations

import json
import re

_CONTROLS = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and line feed, DEL, C1
    r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f"  # text direction; the separators of lines and paragraphs
    r"\u00ad\u180e\u200b\u2060-\u2065\ufeff\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff"  # what nobody sees
)
_FLAG = r"\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f"
"""The flag of a part of a country: a black flag and the characters of its code, which nobody sees."""
_JOINERS = "\u200c\u200d"
_NEIGHBOUR = rf"[^\x00-\x7f{_JOINERS}]"
_LONE_JOINER = re.compile(f"(?<!{_NEIGHBOUR})[{_JOINERS}](?!{_NEIGHBOUR})")
_ON_ONE_LINE = re.compile(rf"{_FLAG}|[^\x20-\x7e{_JOINERS}]")
_IN_LINES = re.compile(f"{_FLAG}|[{_CONTROLS}]")
_IN_JSON = re.compile(rf"[{_CONTROLS}\t\n]")
_IN_PAGE = re.compile(rf"[{_CONTROLS}]")


def printable(text: str) -> str:
    """The text on one line, with an escape for each character that a terminal interprets, or that looks like another one.

    For names and ids, and for what a person decides about; line breaks, tabs and invisible characters are escaped too. Flags
    stay, and joiners beside a character that is not ASCII, as in Persian, Hindi and emoji: in an id of ASCII they hide.
    """
    return _LONE_JOINER.sub(_escaped, _ON_ONE_LINE.sub(_escaped, text))


def printable_lines(text: str) -> str:
    """The text with an escape for each control character but line breaks and tabs.

    What languages and emoji need stays: other spaces, joiners, flags. A carriage return before a line break is left out.
    """
    return _IN_LINES.sub(_escaped, text.replace("\r\n", "\n"))


def json_line(value: object) -> str:
    """The value as JSON on one line, with JSON's escapes for control characters: parsed, it is the same value.

    Raises:
        TypeError, ValueError: it cannot be written as JSON.
    """
    # Without indentation, such characters are in the strings of JSON only.
    written = json.dumps(value, ensure_ascii=False)
    return _IN_JSON.sub(_escaped_in_json, written)


def json_page(value: object) -> str:
    """The value as indented JSON, for people and for files, with JSON's escapes for control characters in its strings.

    Raises:
        TypeError, ValueError: it cannot be written as JSON.
    """
    return _IN_PAGE.sub(_escaped_in_json, json.dumps(value, ensure_ascii=False, indent=1))


def _escaped_in_json(char: re.Match[str]) -> str:
    return "\\u007f" if char[0] == "\x7f" else json.dumps(char[0])[1:-1]


def _escaped(match: re.Match[str]) -> str:
    text = match[0]
    return text if text.isprintable() or len(text) > 1 else text.encode("unicode_escape").decode("ascii")
