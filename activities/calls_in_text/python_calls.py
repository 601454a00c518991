"""Read calls that a model writes as Python does: `search(query="x", limit=5)`, alone or in a list."""

from __future__ import annotations

import json
import re

from mulligan.activities.answers.json_tokens import CLOSER, value_end
from mulligan.activities.answers.size_limits import MOST_CALLS
from mulligan.values import ToolCall

_CALL = re.compile(r"[\s,;]*+(?:print\()?+(?P<name>[A-Za-z_][\w.]{0,127}+)\(\s*+(?=\)|[A-Za-z_]\w*+\s*+=(?!=)|\Z)")
_KEYWORD = re.compile(r"(?P<key>[A-Za-z_]\w*+)\s*+=(?!=)\s*+")
_WORD = re.compile(r"[\w.+-]++")
_COMMA = re.compile(r"\s*+,\s*+")
_END = re.compile(r"\s*+\)++")


def python_calls(text: str) -> list[ToolCall]:
    """Return the calls that a text consists of; none if it contains anything else. Never raises.

    More than `MOST_CALLS + 1` are not read. The `arguments` of a call are an object with its keyword arguments, whose values
    stay as they are written. A call that is cut off has arguments that are not JSON.
    """
    text = text.strip()
    if text.startswith("["):
        text = text[1:].removesuffix("]").rstrip().removesuffix(",").rstrip()
    calls: list[ToolCall] = []
    at = 0
    while at < len(text) and len(calls) <= MOST_CALLS:
        begin = _CALL.match(text, at)
        if begin is None:
            return []
        arguments, at = _arguments(text, begin.end())
        calls.append(ToolCall(id="", name=begin["name"], arguments=arguments))
    return calls


def _arguments(text: str, at: int) -> tuple[str, int]:
    """The arguments from their position on, and the position after the call; the end of the text if they are not whole."""
    members: list[str] = []
    while not (end := _END.match(text, at)):
        keyword = _KEYWORD.match(text, at)
        start = keyword.end() if keyword else len(text)
        stop = _value_end(text, start)
        comma = _COMMA.match(text, stop)
        if keyword is None or not (comma or _END.match(text, stop)):
            return f"{{{', '.join([*members, text[at:]])}", len(text)
        members.append(f"{json.dumps(keyword['key'])}: {text[start:stop]}")
        at = comma.end() if comma else stop
    return f"{{{', '.join(members)}}}", end.end()


def _value_end(text: str, start: int) -> int:
    if text[start : start + 1] in ('"', "'", *CLOSER):
        return value_end(text, start)[0]
    word = _WORD.match(text, start)
    return word.end() if word else start
