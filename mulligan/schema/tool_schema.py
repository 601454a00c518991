"""The JSON schemas of tools that are not made of functions: converted to what every provider accepts.

A schema that a provider refuses would fail every request of a run, so the model gets a simpler one. Arguments are validated
by the tool's own schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from mulligan.schema.subschemas import MAX_DEPTH, References, check_depth, check_references, with_changed_parts

_NOT_AT_ROOT = frozenset(
    {
        *("oneOf", "anyOf", "allOf", "enum", "not", "const", "if", "then", "else"),
        *("$ref", "$dynamicRef", "$id", "dependentSchemas", "unevaluatedProperties"),
    }
)
"""Keywords that OpenAI refuses at the root of a function's parameters, and those that mean nothing without them."""
_NOT_MONOTONE = frozenset(
    {"not", "if", "then", "else", "oneOf", "maxContains", "unevaluatedProperties", "unevaluatedItems"}
)
"""Keywords by which a schema may accept less where a part of it accepts more."""
_PLAIN_POINTER = re.compile(r"#(/(?!\d+(/|$))[^%~/]*)*")
_BASES = ("$id", "$anchor", "$dynamicAnchor")


def provider_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object in keywords that providers support; it accepts what the server's schema accepts.

    It may accept more: what a provider or `jsonschema` cannot process is left out. A property that only some of the
    alternatives at the root define is described as they define it.

    Raises:
        TypeError: it is nested too deeply; the message continues a sentence that names the tool.
    """
    check_depth(schema)
    references = References(schema)
    root = _with_target(schema, references)
    certain, possible = _root_parts(root, references)
    sent = {key: value for key, value in root.items() if key not in _NOT_AT_ROOT}
    properties = _merged_properties(certain, possible)
    if properties.keys() - _properties(root).keys() or root.get("unevaluatedProperties") is not None:
        sent.pop("additionalProperties", None)
    sent |= {"type": "object", "properties": properties}
    if required := list(dict.fromkeys(name for part in certain for name in _names(part.get("required")))):
        sent["required"] = required
    return _Converter(sent, for_provider=True).convert(sent, leaves_out=not _NOT_AT_ROOT.isdisjoint(root))


def checkable_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the server's schema without what cannot be checked here; it accepts what the server's schema accepts.

    Left out are references to other documents, which are not fetched, and JavaScript's patterns that are not Python's.

    Raises:
        TypeError: it is nested too deeply; the message continues a sentence that names the tool.
    """
    check_depth(schema)
    own = {key: value for key, value in schema.items() if (key, value) != ("$ref", "#")}  # it would refer to itself
    if own.get("additionalProperties") is False and not _properties(own) and "patternProperties" not in own:
        # A frequent mistake: it forbids all properties, also those of the alternatives beside it.
        certain, possible = _root_parts(own, References(own))
        if any(_properties(part) for part in (*certain, *possible)):
            del own["additionalProperties"]
    converter = _Converter(own, for_provider=False, has_all_references=_has_all_references(own))
    return converter.convert(own, leaves_out=False)


def _has_all_references(schema: dict[str, Any]) -> bool:
    try:
        check_references(schema)
    except Exception:  # noqa: BLE001 - a server may send anything as a schema; it is checked once it is converted
        return False
    return True


class _Converter:
    """Converts one schema. A part that is left out makes it wider, so then keywords that are not monotone go too."""

    def __init__(self, root: dict[str, Any], *, for_provider: bool, has_all_references: bool = False) -> None:
        """`has_all_references`: each leads to a schema. Otherwise only JSON pointers are followed."""
        self._root, self._for_provider, self._has_all_references = root, for_provider, has_all_references
        self._references = References(root)
        self._has_left_out = False

    def convert(self, schema: dict[str, Any], *, leaves_out: bool) -> dict[str, Any]:
        """`leaves_out`: something is left out already."""
        self._has_left_out = leaves_out
        converted = self._convert(schema)
        return self._convert(schema) if self._has_left_out and not leaves_out else converted

    def _convert(self, schema: dict[str, Any]) -> dict[str, Any]:
        supported: dict[str, Any] = {}
        for key, value in schema.items():
            if not self._is_left_out(key, value, schema):
                supported["anyOf" if key == "oneOf" and self._has_left_out else key] = self._value(key, value)
        if self._for_provider and _is_array(supported) and "items" not in supported:
            supported["items"] = {}
        return with_changed_parts(supported, self._convert)

    def _is_left_out(self, key: str, value: Any, schema: dict[str, Any]) -> bool:
        if key in _NOT_MONOTONE and self._has_left_out:
            return key != "oneOf" or "anyOf" in schema
        unusable = (
            (key == "pattern" and not _is_pattern(value))
            or (key in ("$ref", "$dynamicRef") and not self._resolves(value))
            or (key == "additionalProperties" and not all(map(_is_pattern, _map(schema.get("patternProperties")))))
            or (not self._has_all_references and key in _BASES and isinstance(value, str))
        )
        self._has_left_out |= unusable
        return unusable

    def _value(self, key: str, value: Any) -> Any:
        """The value of a keyword, whose own subschemas are converted later."""
        if key == "patternProperties" and isinstance(value, dict):
            usable = {name: inner for name, inner in value.items() if _is_pattern(name)}
            self._has_left_out |= len(usable) < len(value)
            return usable
        if key == "items" and isinstance(value, list) and not self._is_of_old_draft():
            # A schema for each position, as before 2020-12. Not every provider supports that: each accepts any of them.
            self._has_left_out = True
            return {"anyOf": value} if value else {}
        if self._for_provider and isinstance(value, float) and value.is_integer():
            return int(value)  # JSON Schema takes 2.0 for a count, but not every provider does
        return value

    def _resolves(self, reference: Any) -> bool:
        if self._has_all_references:
            return True
        # Providers follow no index of a list, and no escaped name.
        is_plain = _PLAIN_POINTER.fullmatch(str(reference)) is not None
        return is_plain and isinstance(self._references.target(reference), dict | bool)

    def _is_of_old_draft(self) -> bool:
        draft = self._root.get("$schema")
        return not self._for_provider and isinstance(draft, str) and "2020-12" not in draft


def _with_target(schema: dict[str, Any], references: References) -> dict[str, Any]:
    """A schema whose root is little more than a reference, with the referenced part at the root."""
    root = schema
    for _ in range(MAX_DEPTH):
        target = references.target(root.get("$ref"))
        rest = {key: value for key, value in root.items() if key not in ("$ref", "type")}
        if not isinstance(target, dict) or target is root or (rest.keys() & target.keys()):
            break
        root = rest | target
    return root


def _root_parts(root: dict[str, Any], references: References) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The schemas that apply to the root itself: those that always do, and those that may."""
    certain: list[dict[str, Any]] = []
    possible: list[dict[str, Any]] = []
    followed: set[str] = set()

    def collect(part: Any, is_certain: bool, depth: int) -> None:
        if not isinstance(part, dict) or depth > MAX_DEPTH:
            return
        (certain if is_certain else possible).append(part)
        reference = part.get("$ref", part.get("$dynamicRef"))
        if isinstance(reference, str) and reference not in followed:
            followed.add(reference)
            collect(references.target(reference), is_certain, depth + 1)
        for inner in _list(part.get("allOf")):
            collect(inner, is_certain, depth + 1)
        for inner in _alternatives(part):
            collect(inner, False, depth + 1)

    collect(root, True, 0)
    return certain, possible


def _alternatives(part: dict[str, Any]) -> Iterator[Any]:
    for key in ("anyOf", "oneOf"):
        yield from _list(part.get(key))
    yield from (part.get("then"), part.get("else"))
    yield from _map(part.get("dependentSchemas")).values()


def _merged_properties(certain: list[dict[str, Any]], possible: list[dict[str, Any]]) -> dict[str, Any]:
    """The properties of all parts. What always applies describes a property; what may apply, only if nothing else does."""
    merged: dict[str, Any] = {}
    for parts, keyword in ((certain, "allOf"), (possible, "anyOf")):
        by_name: dict[str, dict[str, Any]] = {}
        for part in parts:
            for name, inner in _properties(part).items():
                if name not in merged:
                    by_name.setdefault(name, {})[json.dumps(inner, sort_keys=True)] = inner
        for name, of_json in by_name.items():
            schemas = list(of_json.values())
            merged[name] = schemas[0] if len(schemas) == 1 else {keyword: schemas}
    return merged


def _properties(part: dict[str, Any]) -> dict[str, Any]:
    return _map(part.get("properties"))


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _names(value: Any) -> list[str]:
    return [name for name in _list(value) if isinstance(name, str)]


def _is_array(schema: dict[str, Any]) -> bool:
    kind = schema.get("type")
    return kind == "array" or (isinstance(kind, list) and "array" in kind)


def _is_pattern(value: Any) -> bool:
    try:
        re.compile(value)
    except (re.error, TypeError, RecursionError, OverflowError):
        return False
    return True
