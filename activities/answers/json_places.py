"""Where JSON stands in a text, and where its members stand in it: strict JSON, or what was meant as such.

Nothing is mended here and no value made: a value is its place in the text. Broken JSON is read by its brackets and quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mulligan.activities.answers.json_tokens import CLOSER, MAX_DEPTH, OPENER, NoToken, Token, strict_token
from mulligan.values import well_formed

AHEAD = 4
"""Times the text's length that may be read in vain beyond the mark that seems to end a block (a fence may stand in a JSON
string). Reading a text costs no more than `AHEAD + 8` readings of it, whatever it is: see `Places.read`."""
MAX_BROKEN = 1_000
"""How often what begins like JSON may turn out to be none: Python's reader counts all lines before each such place."""

_PIECE = re.compile(
    r"""\s+|//[^\n]*+|/\*.*?\*/|(?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|(?P<cut>))|'[^'\\]*+(?:\\.[^'\\]*+)*+(?:'|(?P<cut1>)))
    |(?P<mark>[{}\[\],:])|(?P<word>(?:[^\s{}\[\],:"'/]|/)[^\s{}\[\],:"']*+)""",
    re.DOTALL | re.VERBOSE,
)
_SPACE = re.compile(r"(?:\s+|/\*.*?\*/)*+", re.DOTALL)
_STRICT = json.JSONDecoder(parse_int=str, parse_float=str)
_LOOSE = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)
"""Both read numbers that Python could not hold, as only the extent is asked for; this one raw line breaks in strings too."""


@dataclass(frozen=True)
class Value:
    """Where a value stands. `whole`: its end was found, it is not just where the text stopped."""

    start: int
    end: int
    whole: bool


class Places:
    """One text, and what was spent on it. `read` counts the characters that were looked at."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.read = 0
        self.broken = 0
        self.ahead = AHEAD * len(text)

    @property
    def exhausted(self) -> bool:
        """Whether so much was in vain that nothing more is looked for."""
        return self.ahead < 0 or self.broken >= MAX_BROKEN

    def json_end(self, start: int, *, raw_breaks: bool) -> tuple[int | None, int]:
        """Where the JSON that begins here ends, if it is JSON; and how far it is JSON if it is none."""
        try:
            _, stopped = (_LOOSE if raw_breaks else _STRICT).raw_decode(self.text, start)
        except json.JSONDecodeError as error:
            self.broken += 1
            # Of a string without an end the place of its beginning is told, though it was read to the end of the text.
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
        """The same for broken JSON in a block that seems to end at `limit`.

        The mark that is there may also stand in a string. Then the JSON goes on beyond it, and `ends` matches behind it.
        """
        value = self.skip(start, limit)
        if not value.whole and limit < len(self.text) and self.ahead > 0:
            further = self.skip(start, len(self.text))
            self.ahead -= further.end - limit
            if further.whole and ends.match(self.text, further.end):
                return further
        return value

    def skip(self, start: int, limit: int) -> Value:
        """A value by its brackets and quotes alone. A closer that skips the innermost (`[1}`) closes that one too."""
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
        """What a string says, its spelling right or not; None for anything else."""
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
        """The members of an object. Of a key given twice the last one counts, as in JSON."""
        members: dict[str, Value] = {}
        key: str | None = None
        at = value.start + 1
        while at < value.end and (piece := _PIECE.match(self.text, at, value.end)):
            mark = piece["mark"]
            if piece.lastgroup is None:
                at = piece.end()
            elif mark == ":" and key is not None:
                at = _SPACE.match(self.text, piece.end(), value.end).end()  # type: ignore[union-attr]
                members[key] = self.skip(at, value.end)
                at, key = max(members[key].end, at), None
            elif mark in CLOSER:
                at = self.skip(at, value.end).end
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
            item = self.skip(at, value.end)
            yield item
            at = max(item.end, piece.end())
