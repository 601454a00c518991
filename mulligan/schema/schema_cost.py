"""How much work a JSON schema may cause: schemas come from MCP servers, and values from models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from mulligan.schema.json_schema import referenced_part

__all__ = ["check_size", "is_cheap"]

MAX_BYTES = 200_000
"""Bytes of a schema as JSON."""
MAX_DEPTH = 150
"""Levels of a schema as JSON: pydantic parses 200, and a run's definition has some around the schema."""
MAX_NODES = 20_000
"""Values in a schema as JSON, with the schema that a `$ref` refers to in its place."""
MAX_MIXED_ITEMS = 1_000
"""Items of a list that cannot be sorted: whether they are unique is checked by comparing each with each."""
CHEAP_STEPS = 200_000
"""Nodes of a schema times nodes of a value, below which a validation takes less than about half a second."""
_COSTLY = frozenset(
    {
        *("pattern", "patternProperties", "uniqueItems", "unevaluatedProperties", "unevaluatedItems"),
        *("$ref", "$dynamicRef", "$recursiveRef"),
    }
)
"""Keywords whose validation may take more than linear time."""
_ANCHOR = re.compile(r"#[^/]")
_MAPS = frozenset({"properties", "$defs", "definitions", "dependentSchemas", "dependencies", "dependentRequired"})
_DATA = frozenset({"const", "enum", "default", "examples"})


def check_size(schema: dict[str, Any]) -> None:
    """Check that a schema is small enough to be processed at all.

    Raises:
        TypeError: it is not. The message continues a sentence that names the schema.
    """
    if (depth := _depth(schema)) > MAX_DEPTH:
        raise TypeError(f"is nested {depth} levels deep; {MAX_DEPTH} are the most.")
    if (length := len(json.dumps(schema))) > MAX_BYTES:
        raise TypeError(f"has a schema of {length:,} bytes; {MAX_BYTES:,} are the most.")
    for value in _all_values(schema):
        if isinstance(value, list) and len(value) > MAX_MIXED_ITEMS and not _is_sortable(value):
            raise TypeError(f"has a list of {len(value):,} items in its schema; {MAX_MIXED_ITEMS:,} are the most.")
    if _expanded_nodes(schema) > MAX_NODES:
        raise TypeError(f"has a schema of more than {MAX_NODES:,} parts, with the references in it replaced.")


def is_cheap(schema: dict[str, Any], value: Any = None) -> bool:
    """Whether a value's validation takes little time, whatever the schema's author intended.

    Without a value: whether any short value's does.
    """
    nodes = _cheap_nodes(schema)
    return nodes is not None and nodes * sum(1 for _ in _all_values(value)) <= CHEAP_STEPS


def _cheap_nodes(schema: Any) -> int | None:
    """The number of nodes of a schema; None if it has a keyword whose validation may take more than linear time."""
    count = 0
    left = [(schema, False)]
    while left:
        part, names_are_data = left.pop()
        count += 1
        if isinstance(part, list):
            left += [(inner, False) for inner in part]
        elif isinstance(part, dict):
            if not names_are_data and not _COSTLY.isdisjoint(part):
                return None
            for key, inner in part.items():
                if key in _DATA and not names_are_data:
                    count += sum(1 for _ in _all_values(inner))
                else:
                    left.append((inner, key in _MAPS and not names_are_data))
    return count


def _all_values(value: Any) -> Iterator[Any]:
    left = [value]
    while left:
        part = left.pop()
        yield part
        if isinstance(part, dict):
            left += part.values()
        elif isinstance(part, list):
            left += part


def _depth(value: Any) -> int:
    deepest, left = 0, [(value, 1)]
    while left:
        part, depth = left.pop()
        deepest = max(deepest, depth)
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        left += [(each, depth + 1) for each in inner]
    return deepest


def _is_sortable(values: list[Any]) -> bool:
    return all(isinstance(each, str) for each in values) or all(isinstance(each, (int, float)) for each in values)


def _expanded_nodes(root: dict[str, Any]) -> int:
    """The number of values, with the target of each reference in its place; a reference to what contains it counts once."""
    targets: dict[str, int] = {}
    open_: set[str] = set()

    def count(value: Any) -> int:
        total = 0
        for part in _all_values(value):
            total += 1
            if total > MAX_NODES:
                break
            reference = part.get("$ref", part.get("$dynamicRef")) if isinstance(part, dict) else None
            if not isinstance(reference, str) or reference in open_:
                continue
            if reference not in targets:
                open_.add(reference)
                # An anchor may be anywhere: the whole schema is at least as large.
                target = root if _ANCHOR.match(reference) else referenced_part(root, reference)
                targets[reference] = count(target)
                open_.remove(reference)
            total += targets[reference]
        return total

    return count(root)
