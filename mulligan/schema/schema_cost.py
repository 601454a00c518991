"""How much work a JSON schema may cause: schemas come from MCP servers, and values from models."""

from __future__ import annotations

import json
import re
from typing import Any

from mulligan.schema.subschemas import References, all_subschemas, all_values, check_depth

MAX_BYTES = 200_000
"""Bytes of a schema as JSON."""
MAX_NODES = 20_000
"""Values in a schema as JSON, with the schema that a `$ref` refers to in its place."""
MAX_REFERENCES = 150
"""References that lead from one to the next."""
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


def check_size(schema: dict[str, Any]) -> None:
    """Check that a schema is small enough to be processed at all.

    Raises:
        TypeError: it is not. The message continues a sentence that names the schema.
    """
    check_depth(schema)
    if (length := len(json.dumps(schema))) > MAX_BYTES:
        raise TypeError(f"has a schema of {length:,} bytes; the limit is {MAX_BYTES:,}.")
    for value in all_values(schema):
        if isinstance(value, list) and len(value) > MAX_MIXED_ITEMS and not _is_sortable(value):
            raise TypeError(f"has a list of {len(value):,} items in its schema; the limit is {MAX_MIXED_ITEMS:,}.")
    if _expanded_nodes(schema) > MAX_NODES:
        raise TypeError(f"has a schema of more than {MAX_NODES:,} parts, with the references in it replaced.")


def is_cheap(schema: dict[str, Any], value: Any = None) -> bool:
    """Whether a value's validation takes little time, whatever the schema's author intended.

    Without a value: whether any short value's does.
    """
    if not all(_COSTLY.isdisjoint(part) for part in all_subschemas(schema)):
        return False
    return sum(1 for _ in all_values(schema)) * sum(1 for _ in all_values(value)) <= CHEAP_STEPS


def _is_sortable(values: list[Any]) -> bool:
    return all(isinstance(each, str) for each in values) or all(isinstance(each, (int, float)) for each in values)


def _expanded_nodes(root: dict[str, Any]) -> int:
    """The number of values, with the target of each reference in its place; a reference to what contains it counts once."""
    references = References(root)
    targets: dict[str, int] = {}
    open_: set[str] = set()

    def count(value: Any) -> int:
        total = 0
        for part in all_values(value):
            total += 1
            if total > MAX_NODES:
                break
            reference = part.get("$ref", part.get("$dynamicRef")) if isinstance(part, dict) else None
            if not isinstance(reference, str) or reference in open_:
                continue
            if reference not in targets:
                if len(open_) == MAX_REFERENCES:
                    raise TypeError(f"has more than {MAX_REFERENCES} references that lead from one to the next.")
                open_.add(reference)
                # An anchor may be in a part with an `$id` of its own: the whole schema is at least as large.
                target = root if _ANCHOR.match(reference) else references.target(reference)
                targets[reference] = count(target)
                open_.remove(reference)
            total += targets[reference]
        return total

    return count(root)
