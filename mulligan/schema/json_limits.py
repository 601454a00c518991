"""Limits of JSON that others sent: how deep it is nested and how many values it has, checked before it is parsed.

pydantic writes JSON that is nested deeper than it can read: a value that enters a history too deep fails every later
workflow task. JSON of very short values takes hundreds of times its size as Python objects.
"""

from __future__ import annotations

import re
from typing import Any

MOST_DEPTH = 100
"""Levels of lists and objects in a value from outside. pydantic reads about 200 levels, and a history adds some."""

_BODY = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'
_STRING = re.compile(rb'"' + _BODY + rb'(?:(?P<end>")|(?P<escape>\\?)\Z)', re.DOTALL)
"""A string, or the beginning of a string that the piece cuts off. It matches at each quote, so the time is linear."""
_REST_OF_STRING = re.compile(_BODY, re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def is_deeper(value: Any, most: int = MOST_DEPTH) -> bool:
    """Whether lists and objects in a JSON value are nested more than `most` levels deep."""
    level = [value]
    for _ in range(most):
        lists_and_objects = [each for each in level if isinstance(each, (dict, list))]
        if not lists_and_objects:
            return False
        level = [inner for each in lists_and_objects for inner in (each.values() if isinstance(each, dict) else each)]
    return any(isinstance(each, (dict, list)) for each in level)


class JsonMeter:
    """Measures JSON that arrives in pieces. It also accepts what is not JSON: the parser will refuse that.

    `values` counts lists, objects and commas: about the number of values. `depth` is the deepest nesting so far.
    """

    def __init__(self) -> None:
        self.values = 0
        self.depth = 0
        self._open = 0
        self._is_in_string = False
        self._has_open_escape = False

    def add(self, piece: bytes) -> None:
        """Add the next piece of the text to the measurement."""
        start = self._skip_string(piece) if self._is_in_string else 0
        if self._is_in_string:
            return
        rest, strings = _STRING.subn(rb"\g<end>\g<escape>", piece[start:])
        self._is_in_string = strings > rest.count(b'"')
        self._has_open_escape = self._is_in_string and rest.endswith(b"\\")
        brackets = rest.translate(None, _NO_BRACKETS)
        self.values += rest.count(b",") + brackets.count(b"[") + brackets.count(b"{")
        for bracket in brackets:
            if bracket in b"[{":
                self._open += 1
                self.depth = max(self.depth, self._open)
            else:
                self._open -= 1

    def _skip_string(self, piece: bytes) -> int:
        """The position in a piece after the string that is open at its start."""
        start = int(self._has_open_escape and bool(piece))
        rest = _REST_OF_STRING.match(piece, start)
        end = rest.end() if rest else start
        self._is_in_string = piece[end : end + 1] != b'"'
        self._has_open_escape = piece[end : end + 1] == b"\\"
        return end + 1
