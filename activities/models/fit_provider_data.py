"""Fits the items that a provider has returned into their limit: what stands in the place of those that are too large."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

from mulligan.activities.models._hosted_work import LEFT_OUT, describe_items, is_built_in
from mulligan.schema.json_limits import is_deeper
from mulligan.wire.shorten import json_size

_WRITTEN = frozenset({"tool_use", "function_call", "call", "reasoning", "thinking", "redacted_thinking"})
"""Types of items that are left out without a description: the message has the call, and thoughts are for their model."""
MOST_NOTES, NOTES_BYTES = 20, 10_000
"""Of fields that were left out of an answer, and the bytes that these notes have at most."""
_LINKS = ("id", "call_id", "tool_use_id", "approval_request_id")
"""The fields that say which call a result belongs to. An API refuses a call without its result."""


def fit_provider_data(data: dict[str, JsonValue] | None, most_bytes: int) -> dict[str, JsonValue] | None:
    """The provider's items, with descriptions in the places of the largest, where all of them are too large.

    Items that are nested too deep are described as well. None: they cannot be described, or nothing else is left.

    Args:
        data: The `provider_data` of an answer.
        most_bytes: Bytes of JSON.
    """
    if data is None or (not is_deeper(data) and json_size(data) <= most_bytes):
        return data
    if not all(is_built_in(key) for key in data):
        return None
    share = most_bytes // len(data)
    fitting = {key: _fit(key, value, share) for key, value in data.items()}
    return fitting if not is_deeper(fitting) and json_size(fitting) <= most_bytes else None


def _fit(key: str, value: JsonValue, most_bytes: int) -> JsonValue:
    if isinstance(value, list):
        return _fit_list(key, value, most_bytes)
    return _fit_fields(value, most_bytes) if isinstance(value, dict) else None


def _fit_list(key: str, items: list[JsonValue], most_bytes: int) -> JsonValue:
    sizes = [json_size(item) for item in items]
    total, linked = sum(sizes), _linked(items)
    replaced: dict[int, JsonValue] = {}
    left_out: set[int] = set()
    for number in sorted(range(len(items)), key=lambda each: -sizes[each]):
        if number in left_out or (total <= most_bytes and not is_deeper(items[number])):
            continue
        group = [each for each in linked[number] if each not in left_out]
        size, kind = sum(sizes[each] for each in group), _kind(items[number])
        left_out.update(group)
        total -= size
        if (text := _text_alone(items[number])) is not None:
            replaced[number] = text
        elif kind not in _WRITTEN or len(group) > 1:
            description = describe_items(key, [items[each] for each in group], f"{kind}, {size:,} bytes")
            replaced[group[0]] = {"type": LEFT_OUT, "text": description}
        total += sum(json_size(replaced[each]) for each in group if each in replaced)
    return [
        replaced.get(number, item) for number, item in enumerate(items) if number in replaced or number not in left_out
    ]


def _text_alone(item: JsonValue) -> JsonValue:
    """The place of a text without what stands beside it; None if the item is no text."""
    match item:
        case {"type": "text", "text": text}:
            return {"type": "text", "text": text}
        case {"type": "text"}:
            return {"type": "text"}
        case {"type": "message", "content": list(content)}:
            parts = [part for part in content if isinstance(part, dict)]
            texts = [part.get("refusal" if part.get("type") == "refusal" else "text") for part in parts]
            return {"type": "message", "text": "".join(text for text in texts if isinstance(text, str))}
    return None


def _linked(items: list[JsonValue]) -> list[list[int]]:
    """For each item its number, and those of the call or the results that belong to it, in their order."""
    of_link: dict[str, list[int]] = {}
    for number, item in enumerate(items):
        for link in set(_links(item)):
            of_link.setdefault(link, []).append(number)
    return [
        sorted({number, *(each for link in _links(item) for each in of_link[link])})
        for number, item in enumerate(items)
    ]


def _links(item: JsonValue) -> Iterator[str]:
    part = item.get("part") if isinstance(item, dict) else None
    for fields in (item, *(part.values() if isinstance(part, dict) else ())):
        for name in _LINKS if isinstance(fields, dict) else ():
            if isinstance(fields, dict) and isinstance(link := fields.get(name), str) and link:
                yield link


def _kind(item: JsonValue) -> str:
    if not isinstance(item, dict):
        return "unknown"
    part = item.get("part")
    return next(iter(part), "part") if isinstance(part, dict) else str(item.get("type"))[:100]


def _fit_fields(fields: dict[str, JsonValue], most_bytes: int) -> JsonValue:
    sizes = {name: json_size({name: value}) for name, value in fields.items()}
    fitting, notes, total = dict(fields), [], sum(sizes.values())
    for name in sorted(sizes, key=lambda each: -sizes[each]):
        if total > most_bytes - NOTES_BYTES or is_deeper(fitting[name]):
            del fitting[name]
            total -= sizes[name]
            notes.append(
                f"[The field {name[:100]} of this answer, of {sizes[name]:,} bytes, was too large to be kept.]"
            )
    return {**fitting, LEFT_OUT: "\n".join(notes[:MOST_NOTES])} if notes else fitting
