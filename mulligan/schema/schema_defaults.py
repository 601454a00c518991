"""What equals a default that a JSON schema states, at every depth: an argument that is left out has that default.

An array keeps its order, also with `uniqueItems`: JSON Schema says of it that no two items are equal, and not that their
order means nothing. Only the type `set` of a Python function says that.
"""

from __future__ import annotations

from typing import Any

from pydantic import JsonValue

from mulligan.schema.argument_digest import normal_text
from mulligan.schema.subschemas import References

MOST_STEPS = 150_000
"""Pairs of a schema's part and a value's part that are looked at: of a schema beyond it nothing is left out."""
MOST_LEVELS = 50
"""Schemas within each other for one value, as `allOf` and references have."""
_KINDS = {dict: ("object",), list: ("array",), str: ("string",), bool: ("boolean",), type(None): ("null",)}
_NUMBERS = ("number", "integer")


def without_defaults(schema: dict[str, Any], value: JsonValue) -> JsonValue:
    """A value that is valid by a schema, without the properties that equal the default which the schema states for them.

    Where a schema has alternatives, only the one counts that the value can be told to be meant by its type, or by a property
    with `const` or `enum`.
    """
    try:
        return _Walk(schema).walk([schema], value)
    except (_TooComplex, RecursionError):
        return value


class _TooComplex(Exception):
    """There are more than `MOST_STEPS` pairs, or `MOST_LEVELS`."""


class _Walk:
    def __init__(self, root: dict[str, Any]) -> None:
        self._references, self._steps = References(root), 0

    def walk(self, schemas: list[Any], value: JsonValue) -> JsonValue:
        """The value without what equals its default, by all schemas that apply to it."""
        telling: set[str] = set()
        parts = [part for each in schemas for part in self._parts(each, value, telling, 0)]
        if isinstance(value, list):
            return [self.walk(_of_item(parts, index), each) for index, each in enumerate(value)]
        if not isinstance(value, dict):
            return value
        result = {}
        for name, each in value.items():
            declared = _of_property(parts, name)
            walked = self.walk(declared or _of_others(parts), each)
            if name in telling or not self._is_default(declared, walked):
                result[name] = walked
        return result

    def _is_default(self, declared: list[Any], walked: JsonValue) -> bool:
        followed = [self._references.followed(each) for each in declared if isinstance(each, dict)]
        defaults = [self.walk(declared, each["default"]) for each in followed if "default" in each]
        text = normal_text(walked) if defaults else ""
        return bool(defaults) and all(normal_text(each) == text for each in defaults)

    def _parts(self, schema: Any, value: JsonValue, telling: set[str], level: int) -> list[dict[str, Any]]:
        """A schema and those within it that apply to a value. `telling`: gets the names that tell alternatives apart."""
        self._steps += 1
        if self._steps > MOST_STEPS or level > MOST_LEVELS:
            raise _TooComplex
        if not isinstance(schema, dict):
            return []
        schema = self._references.followed(schema)
        inner = list(_list(schema.get("allOf")))
        for union in ("anyOf", "oneOf"):
            inner += self._alternative(_list(schema.get(union)), value, telling)
        return [schema, *(part for each in inner for part in self._parts(each, value, telling, level + 1))]

    def _alternative(self, given: list[Any], value: JsonValue, telling: set[str]) -> list[dict[str, Any]]:
        """The one alternative that a value may be meant by; none if that is not certain."""
        self._steps += len(given)
        kinds = _KINDS.get(type(value), _NUMBERS)
        followed = [self._references.followed(each) for each in given if isinstance(each, dict)]
        of_kind = [each for each in followed if _has_kind(each, kinds)]
        if len(of_kind) < 2 or not isinstance(value, dict):
            return of_kind if len(of_kind) == 1 else []
        meant = [each for each in of_kind if _is_told(each, value)]
        if len(meant) != 1:
            return []
        telling |= {name for each in of_kind for name in (*_fixed(each), *_list(each.get("required")))}
        return meant


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _of_property(parts: list[dict[str, Any]], name: str) -> list[Any]:
    return [properties[name] for part in parts if name in (properties := _dict(part.get("properties")))]


def _of_others(parts: list[dict[str, Any]]) -> list[Any]:
    """The schemas of properties that are not declared. Patterns of names may take for ever, and are not read."""
    return [part.get("additionalProperties") for part in parts if "patternProperties" not in part]


def _of_item(parts: list[dict[str, Any]], index: int) -> list[Any]:
    found = []
    for part in parts:
        items = part.get("items")
        prefix = items if isinstance(items, list) else _list(part.get("prefixItems"))
        rest = part.get("additionalItems") if isinstance(items, list) else items
        found.append(prefix[index] if index < len(prefix) else rest)
    return found


def _has_kind(schema: dict[str, Any], kinds: tuple[str, ...]) -> bool:
    given = schema.get("type")
    return given is None or any(kind in (given if isinstance(given, list) else [given]) for kind in kinds)


def _fixed(schema: dict[str, Any]) -> dict[str, list[Any]]:
    """The properties that have one of a few values, with these."""
    properties = {name: each for name, each in _dict(schema.get("properties")).items() if isinstance(each, dict)}
    return {
        name: [each["const"]] if "const" in each else _list(each.get("enum"))
        for name, each in properties.items()
        if "const" in each or "enum" in each
    }


def _is_told(schema: dict[str, Any], value: dict[str, Any]) -> bool:
    """Whether a value has all properties that a schema requires, and of those with few values one of these."""
    if any(name not in value for name in _list(schema.get("required"))):
        return False
    return all(value[name] in allowed for name, allowed in _fixed(schema).items() if name in value)
