"""The JSON schema of an MCP server's tool, as providers take it: one that they refuse would fail every request of a run."""

from __future__ import annotations

import re
from typing import Any

_AT_THE_ROOT = ("oneOf", "anyOf", "allOf", "enum", "not", "const", "if", "then", "else")
"""What OpenAI refuses at the root of a function's parameters, or would be pointless without it. The server still checks."""
_MAPS = {"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"}
_LISTS = {"anyOf", "oneOf", "allOf", "prefixItems"}
_SINGLE = {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
MOST_NESTED = 100


def provider_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of an object that says no more than the server's, and nothing that a provider or `jsonschema` cannot read.

    Raises:
        TypeError: no such schema can be made of it: one sentence.
    """
    root = schema
    for _ in range(MOST_NESTED):
        if not isinstance(reference := root.get("$ref"), str):
            break
        found = _found(schema, reference)
        if not isinstance(found, dict):
            break
        kept: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions", "$schema") if key in schema}
        root = {**kept, **{key: value for key, value in root.items() if key != "$ref"}, **found}
    parts = [part for key in ("allOf", "anyOf", "oneOf") for part in _dicts(root.get(key))]
    properties: dict[str, Any] = {}
    for part in parts:
        properties |= part.get("properties", {}) if isinstance(part.get("properties"), dict) else {}
    # Fields of any of the parts, none of them required: which go together is the server's to say.
    open_root = {key: value for key, value in root.items() if key not in (*_AT_THE_ROOT, "$ref", "$id")}
    if parts:
        own = open_root.get("properties")
        open_root["properties"] = properties | (own if isinstance(own, dict) else {})
        open_root.pop("additionalProperties", None)
        open_root.pop("unevaluatedProperties", None)
    open_root["type"] = "object"
    open_root.setdefault("properties", {})
    taken = _read(open_root, open_root, 0)
    assert isinstance(taken, dict)
    return taken


def _read(schema: Any, root: dict[str, Any], depth: int) -> Any:
    if depth > MOST_NESTED:
        raise TypeError("is nested too deeply.")
    if not isinstance(schema, dict):
        return schema
    taken: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, dict):
            taken[key] = {
                name: _read(inner, root, depth + 1)
                for name, inner in value.items()
                if key != "patternProperties" or _is_pattern(name)
            }
        elif key == "items" and isinstance(value, list):
            # Draft 7's schemas by place: not every provider reads them, so each place may be as any of them.
            taken[key] = {"anyOf": [_read(inner, root, depth + 1) for inner in value]} if value else {}
        elif key in _LISTS and isinstance(value, list):
            taken[key] = [_read(inner, root, depth + 1) for inner in value]
        elif key in _SINGLE:
            taken[key] = _read(value, root, depth + 1)
        elif key == "pattern" and not _is_pattern(value):
            continue  # JavaScript's: a value could not be checked, and so never be valid
        elif key in ("$ref", "$dynamicRef") and _found(root, value) is None:
            continue  # nothing is fetched
        else:
            taken[key] = value
    if _is_array(taken) and "items" not in taken:
        taken["items"] = {}
    return taken


def _found(root: dict[str, Any], reference: Any) -> Any:
    """What a reference points to within the schema; None where that is nothing."""
    if reference == "#":
        return root
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return found if isinstance(found, (dict, bool)) else None


def _is_array(schema: dict[str, Any]) -> bool:
    kind = schema.get("type")
    return kind == "array" or (isinstance(kind, list) and "array" in kind)


def _is_pattern(value: Any) -> bool:
    try:
        re.compile(value)
    except (re.error, TypeError, RecursionError, OverflowError):
        return False
    return True


def _dicts(values: Any) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []
