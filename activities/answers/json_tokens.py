"""Tokenize what a model meant as JSON: where each token ends, and whether the text ends inside one.

JSON, JavaScript and Python spell the same values slightly differently. The tokens of all three are accepted. Nothing is
guessed: any other text is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Literal

MAX_DEPTH = 100
"""Levels of lists and objects. The readers of Python and of pydantic have limits that are not much higher."""

CLOSER = {"{": "}", "[": "]"}
OPENER = {"}": "{", "]": "["}
LITERALS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}

# Possessive quantifiers (`*+`) avoid the time and memory of backtracking in long strings.
_STRING = r"""'[^'\\]*+(?:\\.[^'\\]*+)*+'|"[^"\\]*+(?:\\.[^"\\]*+)*+\""""
_TOKEN = re.compile(
    rf"""(?P<space>[\s\ufeff]+)|(?P<comment>//[^\n]*+|\#[^\n]*+|/\*.*?\*/)|(?P<fence>```)
    |(?P<string>{_STRING})|(?P<mark>[{{}}\[\],:])|(?P<word>[^\s{{}}\[\],:"'`/\#]+)""",
    re.DOTALL | re.VERBOSE,
)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STARTED_NUMBER = re.compile(r"[-+.0-9][-+.0-9eE_]*")
_KEY = re.compile(r"(?:[^\W\d]|\$)[\w$-]*|[0-9]+")
_UNCLOSED = "before their last brackets are closed"
_AFTER_MARK = {
    ":": "just before a value",
    ",": "right after a ','",
    "{": "right after an opening '{'",
    "[": "right after an opening '['",
}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)|[\x00-\x1f]|\"", re.DOTALL)

Kind = Literal["mark", "string", "word"]


class NoToken(Exception):
    """The text contains something that is not a token of JSON, JavaScript or Python, so no reading of it is certain."""


@dataclass(frozen=True)
class Token:
    """One token, as it is written in the text."""

    kind: Kind
    text: str
    is_key: bool = False


@dataclass
class Tokens:
    """The tokens of a text up to its end, or up to a closing fence, without comments."""

    tokens: list[Token] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)
    """What was skipped: `comments`, or `whitespace` that is not allowed in JSON."""
    end: int = 0
    stopped_in: str | None = None
    """Where the text was cut off, as part of a sentence ("in the middle of a string"). None if it is complete."""
    may_lack_brace: bool = False
    """Whether it was cut off after a closed string, list or object: a last `}` may be all that is missing."""
    last: int = 0
    """Where the last token begins, also if it is cut off."""


MAX_TOKENS = 80_000
"""Tokens, spaces and comments of a text: reading them takes half a second. A model writes fewer in an answer."""


def tokens_of(text: str, start: int = 0) -> Tokens:
    """Read tokens until the text or its code fence ends.

    Raises:
        NoToken: something is not a token, or is outside of the one list or object that the text consists of; or there are
            more than `MAX_TOKENS`.
    """
    tokens, count = Tokens(), 0
    raw: list[Token] = []
    open_: list[str] = []
    closed = False  # whether the outermost list or object has ended
    at, last_comment = start, False
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            tokens.stopped_in = _inside(text[at:], raw, open_)
            if tokens.stopped_in is None or closed or not raw:
                raise NoToken
            tokens.last = at
            break
        kind, token = match.lastgroup, match.group()
        if kind == "fence":
            break
        at, count = match.end(), count + 1
        if count > MAX_TOKENS:
            raise NoToken
        if kind == "space":
            if token.strip(" \t\r\n"):
                tokens.skipped.add("whitespace")
            continue
        last_comment = kind == "comment"
        if kind == "comment":
            tokens.skipped.add("comments")
            continue
        # A second value, or anything before the first one: which one the model meant is unknown.
        if (closed and token not in {"}", "]", ","}) or (not raw and token not in CLOSER):
            raise NoToken
        tokens.last = match.start()
        raw.append(Token("mark" if kind == "mark" else "string" if kind == "string" else "word", token))
        _follow(token if kind == "mark" else "", open_)
        closed = closed or not open_
    tokens.end = at
    tokens.tokens = _with_keys(raw) if raw else []
    if open_ and tokens.stopped_in is None:
        tokens.stopped_in = "in a comment" if last_comment else _before_end(raw, open_)
        tokens.may_lack_brace = tokens.stopped_in == _UNCLOSED and raw[-1].text not in LITERALS
    return tokens


def value_end(text: str, start: int) -> tuple[int, bool]:
    """How far a value reaches by its brackets and quotes, and whether it ends there; otherwise the text or fence does."""
    open_: list[str] = []
    at = start
    while (match := _TOKEN.match(text, at)) and match.lastgroup != "fence":
        kind, token = match.lastgroup, match.group()
        if kind not in {"space", "comment"}:
            if not open_ and kind == "mark" and token not in CLOSER:
                return at, False
            try:
                _follow(token if kind == "mark" else "", open_)
            except NoToken:
                return at, False
            if not open_:
                return match.end(), True
        at = match.end()
    # To find that a string or comment has no end, all of the text is read.
    return (at, False) if match else (len(text), False)


def strict_token(token: Token) -> tuple[str, str | None]:
    """The token in strict JSON, and the name of the repair for that, if any.

    Raises:
        NoToken: a bare word that is not a literal, number or key; or an escape that the languages read differently.
    """
    if token.kind == "mark":
        return token.text, None
    if token.kind == "string":
        return _strict_string(token.text)
    if token.is_key:
        if _KEY.fullmatch(token.text) is None:
            raise NoToken
        return json.dumps(token.text), "unquoted_keys"
    if token.text in LITERALS:
        return LITERALS[token.text], None if token.text[0].islower() else "python_literals"
    if _NUMBER.fullmatch(token.text):
        return token.text, None
    raise NoToken


def too_deep(text: str) -> int | None:
    """The position where lists and objects exceed `MAX_DEPTH` levels; None if they nowhere do."""
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return None
    depth = 0
    for match in re.finditer(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\]]', text, re.DOTALL):
        token = match.group()
        depth += 1 if token in CLOSER else -1 if token in OPENER else 0
        if depth > MAX_DEPTH:
            return match.start()
    return None


def _follow(mark: str, open_: list[str]) -> None:
    """Update the stack of open brackets. A closer of an outer bracket (`[1}`) closes the inner ones too."""
    if mark in CLOSER and mark:
        if len(open_) == MAX_DEPTH:
            raise NoToken
        open_.append(mark)
    elif mark in OPENER and OPENER[mark] in open_:
        while open_.pop() != OPENER[mark]:
            pass


def _with_keys(raw: list[Token]) -> list[Token]:
    return [
        Token(token.kind, token.text, is_key=True) if token.kind != "mark" and after.text == ":" else token
        for token, after in zip(raw, [*raw[1:], Token("mark", "")], strict=True)
    ]


def _expects_key(raw: list[Token], open_: list[str]) -> bool:
    return bool(open_) and open_[-1] == "{" and raw[-1].kind == "mark" and raw[-1].text in "{,"


def _inside(rest: str, raw: list[Token], open_: list[str]) -> str | None:
    if rest.startswith("/*"):
        return "in a comment"
    if rest[0] not in "\"'":
        return None
    return "in the middle of a name" if raw and _expects_key(raw, open_) else "in the middle of a string"


def _before_end(raw: list[Token], open_: list[str]) -> str:
    """The place where the text was cut off, by its last token, as part of a sentence."""
    last, before = raw[-1], raw[:-1]
    if last.kind == "mark":
        return _AFTER_MARK.get(last.text, _UNCLOSED)
    if _expects_key(before, open_):
        return "right after a name" if last.kind == "string" else "in the middle of a name"
    if last.kind == "string" or last.text in LITERALS:
        return _UNCLOSED
    if any(literal.startswith(last.text) for literal in LITERALS):
        return "in the middle of a literal"
    # `12` may be complete, or the beginning of 1200.
    return "in or right after a number" if _STARTED_NUMBER.fullmatch(last.text) else "in the middle of a value"


def _strict_string(token: str) -> tuple[str, str | None]:
    quote, repair = token[0], "single_quotes" if token[0] == "'" else None
    # Escapes that Python and JavaScript accept, but JSON does not: `\x41`, `\0`, a continued line.
    ambiguous = "xUN01234567av" if quote == "'" else "xUN01234567"
    notes: list[str] = [repair] if repair else []

    def strictly(match: re.Match[str]) -> str:
        whole, escaped = match.group(), match.group(1)
        if escaped is None:
            if whole == '"':
                return '\\"'
            notes.append("control_characters")
            return json.dumps(whole)[1:-1]
        if escaped[0] in '"\\/bfnrt' or len(escaped) == 5:
            return whole
        if escaped == "'" == quote:
            return "'"
        if escaped in ambiguous or escaped == "u" or escaped < " ":
            raise NoToken
        notes.append("invalid_escapes")
        if escaped == "'":
            return "'"
        return f"\\\\{escaped}"  # a regular expression's `\d`: the backslash was meant

    strict = _ESCAPE.sub(strictly, token[1:-1])
    return f'"{strict}"', "+".join(dict.fromkeys(notes)) or None
