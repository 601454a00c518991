"""Find JSON in a text, and the members of it: strict JSON, or what a model meant as JSON.

Nothing is repaired: a value is a position in the text. Broken JSON is read by its brackets and quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mulligan.activities.answers.json_tokens import CLOSER, MAX_DEPTH, OPENER, NoToken, Token, strict_token
from mulligan.values import well_formed

AHEAD = 4
"""How often the text's length may be read in vain beyond the mark that seems to end a block, as a JSON string may contain
such a mark. Reading any text costs at most `AHEAD + 8` times its length: see `JsonReader.read`."""
MAX_BROKEN = 1_000
"""Limit of places that begin like JSON but are none: for each, Python's JSON decoder counts all lines before it."""

_PIECE = re.compile(
    r"""\s+|//[^\n]*+|/\*.*?\*/|(?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|(?P<cut>))|'[^'\\]*+(?:\\.[^'\\]*+)*+(?:'|(?P<cut1>)))
    |(?P<mark>[{}\[\],:])|(?P<word>(?:[^\s{}\[\],:"'/]|/)[^\s{}\[\],:"']*+)""",
    re.DOTALL | re.VERBOSE,
)
_SPACE = re.compile(r"(?:\s+|/\*.*?\*/)*+", re.DOTALL)
_STRICT = json.JSONDecoder(parse_int=str, parse_float=str)
_LOOSE = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)
"""Decoders for the extent of JSON. Both accept numbers of any size; `_LOOSE` also accepts raw line breaks in strings."""


@dataclass(frozen=True)
class Value:
    """The position of a value in the text. `whole`: the value ends there; otherwise the text, or its block, does."""

    start: int
    end: int
    whole: bool


class JsonReader:
    """Reads one text. `read` counts the characters that it has read, `broken` the places that are no JSON."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.read = 0
        self.broken = 0
        self.ahead = AHEAD * len(text)

    @property
    def exhausted(self) -> bool:
        """Whether a limit of the reader is reached: then it stops."""
        return self.ahead < 0 or self.broken >= MAX_BROKEN

    def json_end(self, start: int, *, raw_breaks: bool) -> tuple[int | None, int]:
        """The end of the JSON that begins at `start`, or None if it is broken; and the position up to which it is JSON."""
        try:
            _, stopped = (_LOOSE if raw_breaks else _STRICT).raw_decode(self.text, start)
        except json.JSONDecodeError as error:
            self.broken += 1
            # For a string without an end, the error has the position of its start, but the decoder read the whole text.
            far = len(self.text) if error.msg.startswith("Unterminated") else error.pos
            self.read += far - start
            self.ahead -= far - error.pos
            return None, error.pos
        except RecursionError:
            self.broken += 1
            self.read += len(self.text) - start
            self.ahead -= len(self.text) - start
            return None, start
        self.read += stopped - start
        return stopped, stopped

    def extent(self, start: int, limit: int, ends: re.Pattern[str]) -> Value:
        """The value in a block of broken JSON that seems to end at `limit`.

        The mark at `limit` may be in a string. Then the value continues beyond it, and `ends` matches after the value.
        """
        value = self.value(start, limit)
        if not value.whole and limit < len(self.text) and self.ahead > 0:
            further = self.value(start, len(self.text))
            self.ahead -= further.end - limit
            if further.whole and ends.match(self.text, further.end):
                return further
        return value

    def value(self, start: int, limit: int) -> Value:
        """The value at `start`, by its brackets and quotes. The closer of an outer bracket (`[1}`) closes inner ones too."""
        open_: list[str] = []
        at = end = start
        while at < limit and (piece := _PIECE.match(self.text, at, limit)):
            at, mark = piece.end(), piece["mark"]
            if mark in CLOSER:
                open_.append(mark)
                if len(open_) > MAX_DEPTH:
                    break
            elif mark in OPENER and OPENER[mark] in open_:
                while open_.pop() != OPENER[mark]:
                    pass
            elif not open_ and mark:
                at = end  # the comma or closer behind a bare value, or in place of one
                self.read += at - start
                return Value(start, at, at > start)
            if piece.lastgroup:
                end = at
            if not open_ and (mark or piece["string"]):
                self.read += at - start
                return Value(start, at, piece["cut"] is None and piece["cut1"] is None)
        self.read += at - start
        return Value(start, limit, False)

    def string(self, value: Value) -> str | None:
        """The content of a string, also of a misspelled one; None if the value is not a string."""
        raw = self.text[value.start : value.end]
        if raw[:1] not in {'"', "'"}:
            return None
        if not value.whole:
            raw = re.sub(r"\\(?:u[0-9a-fA-F]{0,3})?\Z", "", raw) + raw[0]
        try:
            return str(well_formed(json.loads(strict_token(Token("string", raw))[0], strict=False)))
        except (NoToken, ValueError):
            return raw[1:-1]

    def members(self, value: Value) -> dict[str, Value]:
        """The members of an object. The last one of two with the same key counts, as in JSON."""
        members: dict[str, Value] = {}
        key: str | None = None
        at = value.start + 1
        while at < value.end and (piece := _PIECE.match(self.text, at, value.end)):
            mark = piece["mark"]
            if piece.lastgroup is None:
                at = piece.end()
            elif mark == ":" and key is not None:
                at = _SPACE.match(self.text, piece.end(), value.end).end()  # type: ignore[union-attr]
                members[key] = self.value(at, value.end)
                at, key = max(members[key].end, at), None
            elif mark in CLOSER:
                at = self.value(at, value.end).end
            elif mark:
                if mark == "}":
                    break
                at = piece.end()
            else:
                word = Value(piece.start(), piece.end(), True)
                key = self.string(word) if piece["string"] else piece.group()
                at = piece.end()
        return members

    def items(self, value: Value) -> Iterator[Value]:
        """The items of a list."""
        at = value.start + 1
        while at < value.end and (piece := _PIECE.match(self.text, at, value.end)):
            if piece["mark"] == "]":
                break
            if piece.lastgroup is None or piece["mark"] in {",", ":", "}"}:
                at = piece.end()
                continue
            item = self.value(at, value.end)
            yield item
            at = max(item.end, piece.end())
