"""The JSON schemas of MCP servers' tools: converted to what every provider accepts, and validated by within limits.

A schema that a provider refuses would fail every request of a run. One that takes long to validate by is used in a child
process, which is killed.
"""

from __future__ import annotations

import json
import re
from typing import Any

from mulligan.activities.tool_running.isolated import ChildProcesses, ProcessDied
from mulligan.activities.tool_running.tool_runtime import TookTooLong
from mulligan.schema.json_limits import is_deeper
from mulligan.schema.json_schema import referenced_part, schema_faults, schema_validator
from mulligan.schema.schema_cost import is_cheap

_ROOT_KEYWORDS = ("oneOf", "anyOf", "allOf", "enum", "not", "const", "if", "then", "else")
"""Keywords that OpenAI refuses at the root of a function's parameters, and those that mean nothing without them. The server
still checks them."""
_MAPS_OF_SCHEMAS = {"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"}
_LISTS_OF_SCHEMAS = {"anyOf", "oneOf", "allOf", "prefixItems"}
_SCHEMAS = {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
MAX_DEPTH = 100
MAX_JSON_DEPTH = 150
"""Levels of lists and objects. Each level of a schema is two of them: a map of properties, and a property."""
CHECK_SECONDS = 5.0
"""Limit of one validation. An ordinary one takes milliseconds."""


def provider_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that accepts all that the server's schema accepts, in keywords that providers support.

    What a provider or `jsonschema` cannot process is left out, so the result may accept more.

    Raises:
        TypeError: it is nested too deeply; the message continues a sentence that names the tool.
    """
    root = schema
    for _ in range(MAX_DEPTH):
        if not isinstance(reference := root.get("$ref"), str):
            break
        target = referenced_part(schema, reference)
        if not isinstance(target, dict):
            break
        definitions: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions", "$schema") if key in schema}
        root = {**definitions, **{key: value for key, value in root.items() if key != "$ref"}, **target}
    parts = [part for key in ("allOf", "anyOf", "oneOf") for part in _dicts(root.get(key))]
    properties: dict[str, Any] = {}
    for part in parts:
        properties |= part.get("properties", {}) if isinstance(part.get("properties"), dict) else {}
    # The properties of all alternatives, none of them required: the server checks which of them go together.
    open_root = {key: value for key, value in root.items() if key not in (*_ROOT_KEYWORDS, "$ref", "$id")}
    if parts:
        own = open_root.get("properties")
        open_root["properties"] = properties | (own if isinstance(own, dict) else {})
        open_root.pop("additionalProperties", None)
        open_root.pop("unevaluatedProperties", None)
    open_root["type"] = "object"
    open_root.setdefault("properties", {})
    converted = _convert(open_root, open_root, 0)
    assert isinstance(converted, dict)
    if is_deeper(converted, MAX_JSON_DEPTH):
        raise TypeError("is nested too deeply.")
    return converted


def _convert(schema: Any, root: dict[str, Any], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise TypeError("is nested too deeply.")
    if not isinstance(schema, dict):
        return schema
    converted: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _MAPS_OF_SCHEMAS and isinstance(value, dict):
            converted[key] = {
                name: _convert(inner, root, depth + 1)
                for name, inner in value.items()
                if key != "patternProperties" or _is_pattern(name)
            }
        elif key == "items" and isinstance(value, list):
            # Draft 7 has a schema for each position. Not every provider supports that, so each position accepts any of them.
            converted[key] = {"anyOf": [_convert(inner, root, depth + 1) for inner in value]} if value else {}
        elif key in _LISTS_OF_SCHEMAS and isinstance(value, list):
            converted[key] = [_convert(inner, root, depth + 1) for inner in value]
        elif key in _SCHEMAS:
            converted[key] = _convert(value, root, depth + 1)
        elif key == "pattern" and not _is_pattern(value):
            continue  # a JavaScript pattern that Python cannot compile: no value could be checked against it
        elif key in ("$ref", "$dynamicRef") and not isinstance(referenced_part(root, value), dict | bool):
            continue  # schemas elsewhere are not fetched
        else:
            converted[key] = value
    if _is_array(converted) and "items" not in converted:
        converted["items"] = {}
    return converted


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


def faults_by(schema: dict[str, Any], value: Any) -> list[tuple[str, str]]:
    """What is wrong with a value, as (path, what is wrong). It runs in the child process."""
    return schema_faults(schema_validator(schema), value)


async def isolated_faults(children: ChildProcesses, schema: dict[str, Any], value: Any) -> list[tuple[str, str]]:
    """As `faults_by`, in a child process unless it takes little time in any case.

    A value that cannot be checked within the limits is at fault itself.
    """
    try:
        if is_cheap(schema, value):
            return faults_by(schema, value)
        text = await children.run(f"{__name__}:{faults_by.__name__}", (schema, value), limit=CHECK_SECONDS)
        return [(str(path), str(says)) for path, says in json.loads(text)]
    except TookTooLong:
        return [("", f"could not be checked within {CHECK_SECONDS:g} s: give a shorter or simpler value")]
    except (ProcessDied, RecursionError, ValueError) as error:
        return [("", f"could not be checked: {error}. Give a shorter or simpler value")]
