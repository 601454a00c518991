"""`json_of`: a script's value as JSON, measured as it is written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from mulligan.schema.json_limits import MOST_DEPTH

INTEGER_BITS = 4_000
"""Of an integer that is given to a tool: Python reads and writes about 14,000."""


class TooLargeError(TypeError):
    """The text of a value has more characters than it may have."""

    def __init__(self, most: int) -> None:
        super().__init__(f"was given more than {most:,} characters of arguments")


class BoundedText:
    """A text that is written in pieces, and has at most `most` characters. It holds never more than one piece beyond."""

    def __init__(self, most: int) -> None:
        self._most, self._room = most, most
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        """Add a piece.

        Raises:
            TooLargeError: there is no room for it.
        """
        self._room -= len(piece)
        if self._room < 0:
            raise TooLargeError(self._most)
        self._pieces.append(piece)

    def add_quoted(self, text: str | bytes, quote: Callable[[Any], str]) -> None:
        """Add what `quote` makes of a text, which is not shorter than the text.

        Raises:
            TooLargeError: there is no room for it.
        """
        if len(text) > self._room:
            raise TooLargeError(self._most)
        self.add(quote(text))

    def __str__(self) -> str:
        return "".join(self._pieces)


def json_of(value: Any, most: int) -> str:
    """The value as JSON of at most `most` characters, in the form of `json.dumps`.

    A list that a script has put into others many times is one object here, but many times as much JSON.

    Raises:
        TypeError: it has no form in JSON, or is nested too deeply; a TooLargeError: it is longer.
    """
    text = BoundedText(most)
    _write(value, text, 0)
    return str(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _write(value: Any, text: BoundedText, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise TypeError("was given a value that is nested too deeply")
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"was given {value}, for which JSON has no number")
    if isinstance(value, int) and value.bit_length() > INTEGER_BITS:
        raise TypeError(f"was given an integer with more than {INTEGER_BITS:,} bits")
    if isinstance(value, str):
        text.add_quoted(value, _quoted)
    elif value is None or isinstance(value, bool | int | float):
        text.add(json.dumps(value))
    elif isinstance(value, list | tuple):
        _write_list(value, text, depth)
    elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
        _write_object(value, text, depth)
    else:
        raise TypeError(
            f"was given a {type(value).__name__}; give texts, numbers, booleans, None, lists and dicts of texts"
        )


def _write_list(value: list[Any] | tuple[Any, ...], text: BoundedText, depth: int) -> None:
    text.add("[")
    for number, each in enumerate(value):
        if number:
            text.add(", ")
        _write(each, text, depth + 1)
    text.add("]")


def _write_object(value: dict[str, Any], text: BoundedText, depth: int) -> None:
    text.add("{")
    for number, (key, each) in enumerate(value.items()):
        if number:
            text.add(", ")
        text.add_quoted(key, _quoted)
        text.add(": ")
        _write(each, text, depth + 1)
    text.add("}")
