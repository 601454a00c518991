"""The calls in requests, in the form of any API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

CALLS = [
    ("click", "{'selector': '#a',}"),
    ("Click", '```json\n{"selector": "#b"}\n```'),
    ("click", '"#c"'),
    ("click", '{"element": "#d"}'),
    ("functions.now", "{}"),
    ("click", "{'selector': '#e"),
    ("clik", "{'selector': '#f'}"),
    ("click", '{"selector": "#g"}'),
]
SENT = [
    *(("click", {"selector": f"#{letter}"}) for letter in "abcd"),
    ("now", {}),
    ("click", {}),
    ("clik", {}),
    ("click", {"selector": "#g"}),
]


def calls_in(item: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and arguments of each call in a request, in the form of any API."""
    if isinstance(item, list):
        for each in item:
            yield from calls_in(each)
    if not isinstance(item, dict):
        return
    match item:
        case {"function": {"name": name, "arguments": str(arguments)}} | {
            "type": "function_call",
            "name": name,
            "arguments": str(arguments),
        }:
            yield name, json.loads(arguments)
        case {"type": "tool_use", "name": name, "input": dict(given)} | {
            "functionCall": {"name": name, "args": dict(given)}
        }:
            yield name, given
        case _:
            for name in ("messages", "input", "contents", "content", "parts", "tool_calls"):
                yield from calls_in(item.get(name))
