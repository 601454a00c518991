"""JSON to endpoints and from them: bodies are written once, and what careless servers send is read."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Sequence
from typing import Any

from mulligan.activities.models.protocol import FinishReason, Unavailable
from mulligan.errors import ModelRequestError

MOST_TOKENS = 10**12
"""Tokens of one answer. A larger number of a faulty endpoint could not be multiplied with a price."""

_FAILED = re.compile(
    r"error|abort|fail|cancel|interrupt|insufficient|overload|unavailable|exhausted|time_?d?_?out|exception|disconnect"
    r"|malformed_response|shut_?down|preempt|evict|(?<!s)kill|crash|unload|quota|rate.?limit|unauthorized|denied"
    r"|out_of_memory|\boom\b|connection",
    re.IGNORECASE,
)
"""In finish reasons: `error` (OpenRouter), `abort` (vLLM), `insufficient_system_resource` (DeepSeek), `ERROR_TOXIC`."""


def to_json(value: object) -> str:
    """Write a body, or an item of it, as JSON. Items are written once and then cached, as each step sends all of them again.

    Raises:
        ModelRequestError: it cannot be written as JSON.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode().decode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelRequestError(f"The request cannot be written as JSON: {error}.") from None


def as_text(value: object) -> str:
    """A field that should be a text. From careless servers it is null, or JSON instead of the text of that JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def finish_reason(
    reason: object, has_calls: bool, cut_off: Container[Any], filtered: Container[Any] = (), *, is_refused: bool = False
) -> FinishReason:
    """Our finish reason. An answer with calls ends by them, unless it was cut off, withheld or refused.

    `cut_off`, `filtered`: the API's reasons for answers that were cut off by the token limit, or withheld by a filter.

    Raises:
        Unavailable: the reason says that the endpoint did not finish the answer.
    """
    if reason in cut_off:
        return "length"
    if reason in filtered:
        return "content_filter"
    if has_failed(reason):
        raise Unavailable(f"the endpoint ended its answer with the finish reason {as_text(reason)[:200]!r}")
    return "refusal" if is_refused else "tool_calls" if has_calls else "stop"


def has_failed(reason: object) -> bool:
    """Whether a finish reason says that something went wrong before the answer was whole."""
    return isinstance(reason, str) and bool(_FAILED.search(reason))


def unknown_reason(reason: object, known: Container[str]) -> str:
    """The endpoint's own word for the end of an answer, where it is none of those that are `known`, in small letters."""
    text = as_text(reason)
    return "" if text.lower() in known else text


def shorten_layout(layout: list[Any], texts: int, *, text: str, call: str) -> list[Any]:
    """Leave out what the message itself has: its only text, and the parts at the end that follow in their order anyway.

    `text`, `call`: the types of the parts of an answer that are its texts, and its calls.
    """
    if texts == 1:
        layout = [{k: v for k, v in part.items() if k != "text" or part.get("type") != text} for part in layout]
    while layout and layout[-1] == {"type": call}:
        layout.pop()
    return layout[:-1] if layout and layout[-1] == {"type": text} else layout


def results_first(items: Sequence[str], *, result: str, user: str) -> list[str]:
    """The items, with the images and files of a step's results after all of its results: none may stand between those.

    Args:
        items: The items of a conversation, as JSON.
        result: How that of a result begins.
        user: How that of a user begins; a result's may begin so, too.
    """
    ordered: list[str] = []
    later: list[str] = []
    for item in items:
        is_result = item.startswith(result)
        if item.startswith(user) and not is_result:
            later.append(item)
            continue
        if not is_result:
            ordered += later
            later = []
        ordered.append(item)
    return [*ordered, *later]


def token_count(usage: object, *path: str) -> int:
    """A number of tokens at a path within `usage`, at most `MOST_TOKENS`; 0 where the server does not send it."""
    for name in path:
        usage = usage.get(name) if isinstance(usage, dict) else None
    return min(usage, MOST_TOKENS) if isinstance(usage, int) and usage > 0 else 0
