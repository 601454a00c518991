"""Read the arguments of a tool call as JSON: strictly, or repaired where only the spelling is wrong.

A repair never adds a value that the model did not write. A text that was cut off has no repaired reading, as nobody knows
what is missing: the model gets feedback, and writes it again. The exception is a last `}` after which nothing can follow.

The library json-repair is not used. It completes and drops values, so its result would have to be compared with the tokens
of the text. With all tokens known, there is only one way to set the marks between them, which is implemented here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import cast

from pydantic import JsonValue

from mulligan.activities.answers.json_tokens import (
    CLOSER,
    MAX_DEPTH,
    OPENER,
    NoToken,
    Token,
    Tokens,
    strict_token,
    tokens_of,
    too_deep,
)
from mulligan.values import well_formed

MAX_REPAIRED = 1_000_000
"""Characters beyond which a text is not repaired: tokenizing it takes about a second for a megabyte."""

NEAR = 24
"""Characters quoted on each side of a fault."""

_MARKS = {*CLOSER, *OPENER, ",", ":"}
_FENCE = re.compile(r"```[ \t]*[\w+-]*[ \t]*\r?\n?")
_REASONS = {
    "Expecting value": "a value is missing or is not spelled as JSON spells it",
    "Expecting property name enclosed in double quotes": "a name in double quotes is expected",
    "Illegal trailing comma before end of object": "a comma stands before the closing '}'",
    "Illegal trailing comma before end of array": "a comma stands before the closing ']'",
    "Expecting ':' delimiter": "a ':' is expected after a name",
    "Expecting ',' delimiter": "a ',' or a closing bracket is expected after a value",
    "Unterminated string starting at": "the arguments stop in the middle of a string",
    "Invalid control character at": "a string contains a raw line break or control character; write \\n, \\t or \\uXXXX",
    "Invalid \\escape": "a string contains a backslash that does not begin a JSON escape; write \\\\ for a backslash",
    "Invalid \\uXXXX escape": "a \\u in a string is not followed by four hexadecimal digits",
    "Extra data": "the JSON value has ended, but more text follows it",
    "Unexpected UTF-8 BOM (decode using utf-8-sig)": "the text begins with a byte order mark",
}


class NotJson(ValueError):
    """The text is not JSON. `reason` never quotes the text; `near` and the whole message do.

    `is_cut_off`: the text is the beginning of JSON, so the rest of it is missing.
    """

    def __init__(self, reason: str, position: int, text: str = "", *, is_cut_off: bool = False) -> None:
        self.reason = reason
        self.position = position
        self.is_cut_off = is_cut_off
        self.line = text.count("\n", 0, position) + 1
        self.column = position - (text.rfind("\n", 0, position) + 1) + 1
        before, after = text[max(0, position - NEAR) : position], text[position : position + NEAR]
        self.near = re.sub(r"[\x00-\x1f\x7f]", " ", str(well_formed(before + after)))
        where = f" (line {self.line}, column {self.column}, near `{self.near}`)" if self.near else ""
        super().__init__(f"{reason[:1].upper()}{reason[1:]}{where}.")


@dataclass(frozen=True)
class RepairedJson:
    """One reading of a text that is almost JSON, and the names of the repairs for it, joined by `+`."""

    value: JsonValue
    by: str


class _Refused(Exception):
    def __init__(self, token: str, reason: str) -> None:
        self.token = token
        self.reason = reason


def parse_json(text: str) -> JsonValue:
    """Read strict JSON (RFC 8259). The last one of two equal names counts. Lone surrogates become U+FFFD.

    Raises:
        NotJson: the text is not JSON, or contains what Python cannot represent: NaN, 1e999, more than 100 levels.
    """
    return parse_exactly(text)[0]


def parse_exactly(text: str) -> tuple[JsonValue, bool]:
    """Parse JSON as `parse_json` does; also say whether the text's value is unchanged (no lone surrogate was replaced).

    Raises:
        NotJson: as `parse_json` does.
    """
    if (deep := too_deep(text)) is not None:
        raise NotJson(f"lists and objects are nested more than {MAX_DEPTH} levels deep", deep, text)
    try:
        value = json.loads(text, parse_int=_int, parse_float=_float, parse_constant=_constant)
    except _Refused as refused:
        raise NotJson(refused.reason, max(0, text.find(refused.token)), text) from None
    except RecursionError:
        # The caller itself may be deep in the stack.
        raise NotJson("lists and objects stand too deep in each other", 0, text) from None
    except json.JSONDecodeError as error:
        raise _explained(text, error) from None
    if "\\ud" in text or "\\uD" in text or well_formed(text) != text:
        changed = _well_formed(value)
        return changed, changed == value
    return cast(JsonValue, value), True


def repair_json(text: str, properties: Set[str] = frozenset()) -> Iterator[RepairedJson]:
    """Yield the readings of a text that is almost JSON, the most conservative first. Never raises.

    The caller uses the first one that its schema accepts; at present there is at most one. There is none for strict JSON
    (except for a string that contains JSON), prose, two values in a row, and a text that was cut off.

    Args:
        text: The text.
        properties: All names that the expected object can have. An object with a value for each of them, the last one a
            closed string, list or object, may lack its `}`. Without names, no `}` is added.
    """
    text = text.strip(" \t\r\n")
    begin = text.lstrip(" \ufeff\xa0")[:1]
    if not begin or len(text) > MAX_REPAIRED:
        return
    if text.startswith(('{\\"', '[\\"')):
        yield from _encoded_twice(f'"{text}"', properties)
    elif begin in CLOSER:
        yield from _container(text, properties)
    elif begin == '"':
        yield from _encoded_twice(text, properties)
    elif (fence := _FENCE.search(text)) and not re.search(r"[{\[]", text[: fence.start()]):
        for repaired in _container(text, properties, fence.end(), fenced=True):
            yield RepairedJson(repaired.value, "+".join(filter(None, ("code_fence", repaired.by))))


def _container(text: str, properties: Set[str], start: int = 0, *, fenced: bool = False) -> Iterator[RepairedJson]:
    try:
        tokens = tokens_of(text, start)
        rest = text[tokens.end :]
        # Any text may follow the closing fence, except for a second block: which one the model meant is unknown.
        is_unclear = rest.count("```") > 1 if fenced else rest.strip("`")
        if (tokens.stopped_in and not tokens.may_lack_brace) or not tokens.tokens or is_unclear:
            return
        strict, notes = _strictly(tokens)
        if rest and not fenced:
            notes.add("code_fence")
        value = parse_json(" ".join(strict))
    except (NoToken, NotJson):
        return
    # A property that is not there may have been cut off.
    if tokens.may_lack_brace and not (properties and isinstance(value, dict) and properties <= value.keys()):
        return
    # Of two equal names the first value is lost. That is the rule for strict JSON; in a repaired text it would be a guess.
    if (notes or fenced) and _count(value) == sum(map(_is_value, strict)):
        yield RepairedJson(value, "+".join(sorted(notes)))


def _encoded_twice(text: str, properties: Set[str]) -> Iterator[RepairedJson]:
    """A list or object that the model encoded twice, as a JSON string."""
    try:
        inner = parse_json(text)
    except NotJson:
        return
    if not isinstance(inner, str) or not inner.strip().startswith(("{", "[")):
        return
    try:
        yield RepairedJson(parse_json(inner), "double_encoded")
    except NotJson:
        for repaired in _container(inner.strip(), properties):
            yield RepairedJson(repaired.value, f"double_encoded+{repaired.by}")


def _strictly(tokens: Tokens) -> tuple[list[str], set[str]]:
    """The tokens in strict JSON, with missing commas and the missing last `}` added; and the names of the repairs.

    The strict reader decides whether the result is JSON: only marks that are possible in one place alone are changed.

    Raises:
        NoToken: as `strict_token` does.
    """
    out: list[str] = []
    notes = set(tokens.skipped)
    depth = 0
    for token in tokens.tokens:
        if out and depth == 0:
            notes.add("surplus_closers")  # only closers can follow the outermost one
            break
        if token.text in OPENER:
            depth -= 1
            _drop_comma(out, notes)
            out.append(token.text)
            continue
        # Two values in a row may be one without its quotes: no comma is added between those.
        if out and ((out[-1] in OPENER and token.text not in ",:") or (_is_value(out[-1]) and _begins_item(token))):
            notes.add("missing_commas")
            out.append(",")
        depth += token.text in CLOSER
        strict, note = strict_token(token)
        out.append(strict)
        notes.update(note.split("+") if note else ())
    if tokens.may_lack_brace:
        notes.add("missing_closers")
        out.append("}")
    return out, notes


def _is_value(strict: str) -> bool:
    return strict not in _MARKS


def _begins_item(token: Token) -> bool:
    return token.is_key or token.text in CLOSER


def _drop_comma(out: list[str], notes: set[str]) -> None:
    if len(out) > 1 and out[-1] == "," and out[-2] not in {"{", "[", ",", ":"}:
        out.pop()
        notes.add("trailing_commas")


def _count(value: JsonValue) -> int:
    """The number of names and of values that are not a list or object."""
    if isinstance(value, dict):
        return len(value) + sum(map(_count, value.values()))
    return sum(map(_count, value)) if isinstance(value, list) else 1


def _explained(text: str, error: json.JSONDecodeError) -> NotJson:
    if not text.strip():
        return NotJson("the arguments are empty", 0, text)
    begin = len(text) - len(text.lstrip())
    reason = _REASONS.get(error.msg, error.msg)
    try:
        tokens = tokens_of(text, begin) if len(text) <= MAX_REPAIRED else Tokens()
    except NoToken:
        tokens = Tokens()
    if tokens.stopped_in and error.pos >= tokens.last:
        return NotJson(f"the arguments stop {tokens.stopped_in}", len(text), text, is_cut_off=True)
    if tokens.stopped_in:
        # For `{'a': 'it's'}`, the first fault is the reason why the end looks cut off.
        return NotJson(f"{reason}, and the arguments seem to stop {tokens.stopped_in}", error.pos, text)
    if error.msg.startswith("Unterminated"):
        return NotJson(reason, len(text), text, is_cut_off=True)
    if error.pos >= len(text.rstrip()):
        return NotJson("the arguments stop before their last brackets are closed", len(text), text, is_cut_off=True)
    if error.pos == begin and text[begin] not in CLOSER:
        return NotJson("the text does not begin with a JSON value", error.pos, text)
    return NotJson(reason, error.pos, text)


def _well_formed(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {str(well_formed(name)): _well_formed(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_well_formed(inner) for inner in value]
    return cast(JsonValue, well_formed(value))


def _int(token: str) -> int:
    try:
        return int(token)
    except ValueError:
        raise _Refused(token, f"a number has {len(token)} digits, more than can be read") from None


def _float(token: str) -> float:
    value = float(token)
    if value in (float("inf"), float("-inf")):
        raise _Refused(token, "a number is larger than the largest 64-bit float")
    return value


def _constant(token: str) -> None:
    raise _Refused(token, "NaN and Infinity are not JSON; use null or a number")
