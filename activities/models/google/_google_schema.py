"""A JSON schema in the part of JSON Schema that Gemini's API accepts.

What it does not accept is left out, and written into the description: answers and arguments are validated afterwards, so a
schema may become wider, but never another one.
"""

from __future__ import annotations

import json
from typing import Any

from mulligan.schema.subschemas import with_changed_parts

SUPPORTED = frozenset(
    {
        *("$defs", "$ref", "type", "title", "description", "enum", "format", "items", "prefixItems", "minItems"),
        *("maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required"),
    }
)
"""The keywords of `responseJsonSchema`, by Google's documentation."""
_SILENT = frozenset({"$schema", "$id", "$comment", "$anchor", "default", "examples", "discriminator", "deprecated"})
"""Keywords that do not constrain a value; a default is written into the description."""


def google_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema in the accepted form. `schema` itself is not changed."""
    definitions = {**(schema.get("definitions") or {}), **(schema.get("$defs") or {})}
    named = {"$defs": definitions} if definitions else {}
    if "$ref" in schema:
        reference: dict[str, Any] = {"$ref": str(schema["$ref"]).replace("#/definitions/", "#/$defs/")}
        description = schema.get("description")
        if isinstance(description, str):
            reference = {"anyOf": [reference], "description": description}
        return {**reference, **with_changed_parts(named, google_schema)}
    if isinstance(parts := schema.get("allOf"), list) and len(parts) == 1 and isinstance(parts[0], dict):
        rest = {name: value for name, value in schema.items() if name != "allOf"}
        return google_schema({**parts[0], **rest})
    supported = {name: value for name, value in schema.items() if name in SUPPORTED - {"$defs"}}
    adapted = with_changed_parts({**supported, **named}, google_schema)
    if "const" in schema and "enum" not in schema:
        adapted["enum"] = [schema["const"]]
    if "enum" in adapted and not _is_supported_enum(adapted["enum"]):
        del adapted["enum"]
    notes = {name: schema[name] for name in schema if _is_left_out(name, adapted)}
    if notes:
        written = "; ".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in notes.items())
        adapted["description"] = f"{schema.get('description', '')} ({written})".strip()
    return adapted


def _is_supported_enum(values: Any) -> bool:
    """Whether an `enum` has texts and numbers only."""
    return isinstance(values, list) and all(
        isinstance(value, str | int | float) and not isinstance(value, bool) for value in values
    )


def _is_left_out(name: str, adapted: dict[str, Any]) -> bool:
    if name == "default":
        return True
    if name in ("enum", "const"):
        return "enum" not in adapted
    return name not in SUPPORTED and name not in _SILENT and name != "definitions"
