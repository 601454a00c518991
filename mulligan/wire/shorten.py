"""JSON values and texts cut to a size for display. A value keeps its type: an object stays an object, a list a list."""

from __future__ import annotations

import json
from typing import Any

from mulligan.schema.cut_text import cut_text

_LONGEST_TEXTS = (2_000, 200, 20)
"""Characters to which texts in a value are cut: each is tried until the value fits."""
_NOTE = "…"


def json_size(value: Any) -> int:
    """The size of a value as JSON, in bytes."""
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def shorten(value: Any, max_bytes: int, hint: str = "") -> Any:
    """The value in at most about `max_bytes`: texts in it are cut, then fields or items left out; each says how much.

    `hint` is added to the note at each cut text: where the whole value can be found.
    """
    if json_size(value) <= max_bytes:
        return value
    if isinstance(value, str):
        return cut_text(value, max_bytes // 6, hint)
    for longest in _LONGEST_TEXTS:
        cut = _with_short_texts(value, longest, hint)
        if json_size(cut) <= max_bytes:
            return cut
    return _first_of(cut, max_bytes)


def shorten_middle(text: str, longest: int) -> str:
    """The beginning and the end of a text, about `longest` characters in all, with a note of how much is left out."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}{_NOTE} ({len(text) - 2 * half:,} characters left out here) {_NOTE}{text[len(text) - half :]}"


def _with_short_texts(value: Any, longest: int, hint: str) -> Any:
    if isinstance(value, dict):
        return {cut_text(name, longest): _with_short_texts(inner, longest, hint) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_short_texts(inner, longest, hint) for inner in value]
    return cut_text(value, longest, hint) if isinstance(value, str) else value


def _first_of(value: Any, max_bytes: int) -> Any:
    """Return as many fields or items as fit, and how many are left out."""
    left = max_bytes
    if isinstance(value, dict):
        fields: dict[str, Any] = {}
        for name, inner in value.items():
            left -= json_size(name) + json_size(inner) + 4
            if left < 0:
                return {**fields, _NOTE: f"{len(value) - len(fields)} more fields"}
            fields[name] = inner
        return fields
    if isinstance(value, list):
        items: list[Any] = []
        for inner in value:
            left -= json_size(inner) + 2
            if left < 0:
                return [*items, f"{_NOTE} {len(value) - len(items)} more items"]
            items.append(inner)
        return items
    return value
