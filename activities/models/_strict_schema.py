"""A JSON schema as OpenAI's strict mode takes it, so that the model's arguments fit it by construction.

The rules are those of OpenAI's guide "Structured model outputs", sections "Supported schemas" and "Some type-specific
keywords are not yet supported"; the rest is what its API answers. What strict mode cannot say is not sent in it: `strict`
gives None, and the tool goes as it is, non-strict. Our own validation follows in any case, so a schema may become wider:
a constraint that strict mode does not take is put into words, in the description.

It may never become another one. All properties must be required in strict mode. One with a default can be: the model is told
the default, and gives it. So can one that may be null. One that may only be left out cannot: forced, the model would make
a value up (an empty list may well mean "delete all"); made nullable, as the guide proposes, it would give a null that the
tool's own schema refuses. So None then.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["strict"]

MAX_LEVELS, MAX_PROPERTIES, MAX_ENUM, MAX_NAMES = 10, 5_000, 1_000, 120_000
"""The guide's limits: levels, properties and values of enums in all, characters of all names and of those values. What it
counts as a level it does not say: here every object and every list is one."""
LONG_ENUM, MAX_LONG_ENUM = 250, 15_000
"""An enum of more strings than the first may have so many characters in all."""

FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
TYPES = {
    "string": ("pattern", "format"),
    "number": ("multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
    "integer": ("multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
    "array": ("minItems", "maxItems"),
    "boolean": (),
    "null": (),
    "object": (),
}
"""The types, each with the constraints that strict mode takes of it."""
IMPOSSIBLE = frozenset(
    {
        *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"),
        *("patternProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems"),
        *("prefixItems", "additionalItems", "contains", "minContains", "maxContains", "minProperties"),
        *("$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor"),
    }
)
"""Left out, the rest of such a schema would be quite another one: what the model is forced into would often be refused."""
BODY = frozenset({"type", "properties", "required", "items", "enum", "const", "$ref", "anyOf", "oneOf"})
"""Of these a schema has one, or those of one type: both would have to be merged."""
WORDS = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "maxProperties": "at most {} properties",
    "format": "format: {}",
    "pattern": "matches the regular expression {}",
    "contentEncoding": "encoded as {}",
    "contentMediaType": "of media type {}",
}
_UNSUPPORTED_PATTERN = re.compile(r"\(\?(?!:)|\\[1-9bBpPk]")
"""Lookarounds are refused by the API; the others no automaton knows either. Pydantic's pattern of a Decimal has one."""


class _NotStrict(Exception):
    """Strict mode cannot say this."""


def strict(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Adapt a schema of a tool's arguments to strict mode; None if it cannot be. `schema` itself is left as it is."""
    try:
        return _Adapter(schema).adapted()
    except (_NotStrict, RecursionError, TypeError, ValueError, AttributeError):
        return None  # the latter: it is no JSON schema, so what it means is not known


class _Adapter:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._definitions: dict[str, dict[str, Any]] = {}
        self._wanted: list[str] = []

    def adapted(self) -> dict[str, Any]:
        root = self._root
        if "$ref" in root:  # pydantic's spelling of a recursive model
            siblings = {key: value for key, value in root.items() if key not in ("$ref", "$defs", "definitions")}
            root = {**self._target(self._name(root["$ref"])), **siblings}
        adapted = self._schema(root)
        # `anyOf` at the root is refused, and so is anything but an object.
        if adapted.get("type") != "object":
            raise _NotStrict
        while self._wanted:
            name = self._wanted.pop()
            self._definitions[name] = self._schema(self._target(name))
        if self._definitions:
            adapted["$defs"] = dict(sorted(self._definitions.items()))
        _check_limits(adapted)
        return adapted

    def _name(self, ref: object) -> str:
        """What a reference names: a definition, or "" for the root."""
        match = re.fullmatch(r"#(?:/(?:\$defs|definitions)/([^/]+))?", ref) if isinstance(ref, str) else None
        if match is None:
            raise _NotStrict
        return _last(match.group(1) or "")

    def _target(self, name: str) -> dict[str, Any]:
        for key in ("$defs", "definitions"):
            definitions = self._root.get(key)
            if isinstance(definitions, dict) and isinstance(found := definitions.get(name), dict):
                return found
        raise _NotStrict

    def _schema(self, schema: object) -> dict[str, Any]:
        if not isinstance(schema, dict) or IMPOSSIBLE & schema.keys():
            raise _NotStrict
        told = _told(schema)
        if "allOf" in schema:
            (part,) = schema["allOf"]  # two would have to be merged; and so would one that says what its siblings say
            rest = {key: value for key, value in schema.items() if key != "allOf"}
            if part.keys() & rest.keys() - {"title", "description", "default"}:
                raise _NotStrict
            return self._schema({**part, **rest})
        if "$ref" in schema:
            return self._reference(schema, told)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._union(schema, key, told)
        return self._typed(schema, told)

    def _reference(self, schema: dict[str, Any], told: dict[str, str]) -> dict[str, Any]:
        name = self._name(schema["$ref"])
        if name and name not in self._definitions:
            self._target(name)
            self._definitions[name] = {}
            self._wanted.append(name)
        reference = {"$ref": f"#/$defs/{name.replace('~', '~0').replace('/', '~1')}" if name else "#"}
        if schema.keys() & BODY - {"$ref"}:
            raise _NotStrict
        # "$ref cannot have keywords {'description'}", says the API; beside `anyOf` they may stand (so pydantic-ai does it).
        return {"anyOf": [reference], **told} if told else reference

    def _union(self, schema: dict[str, Any], key: str, told: dict[str, str]) -> dict[str, Any]:
        branches = schema[key]
        if not isinstance(branches, list) or not branches:
            raise _NotStrict
        if schema.keys() & BODY - {key}:
            raise _NotStrict
        return {"anyOf": [self._schema(branch) for branch in branches], **told}

    def _typed(self, schema: dict[str, Any], told: dict[str, str]) -> dict[str, Any]:
        types = _types(schema)
        adapted: dict[str, Any] = {"type": types[0] if len(types) == 1 else types, **told}
        adapted.update(copy.deepcopy({key: schema[key] for key in ("enum", "const") if key in schema}))
        for kind in types:
            adapted.update({key: schema[key] for key in TYPES[kind] if key in schema and _is_taken(key, schema[key])})
        if "array" in types:
            adapted["items"] = self._schema(schema.get("items"))
        if "object" in types:
            adapted.update(self._object(schema))
        return adapted

    def _object(self, schema: dict[str, Any]) -> dict[str, Any]:
        properties, required = schema.get("properties"), schema.get("required", [])
        is_open = schema.get("additionalProperties", False) is not False
        if is_open or not isinstance(properties, dict) or not set(required) <= properties.keys():
            raise _NotStrict
        adapted = {}
        for name, inner in properties.items():
            if name not in required and not self._may_be_forced(inner):
                raise _NotStrict
            adapted[name] = self._schema(inner)
        return {"properties": adapted, "required": list(adapted), "additionalProperties": False}

    def _may_be_forced(self, schema: object, depth: int = 0) -> bool:
        """Whether a property that may be left out loses nothing if it never is. See the module's text."""
        if not isinstance(schema, dict) or depth > MAX_LEVELS:
            return False
        if "default" in schema or schema.get("type") == "null" or "null" in schema.get("type", ()):
            return True
        if "$ref" in schema:
            name = self._name(schema["$ref"])
            return bool(name) and self._may_be_forced(self._target(name), depth + 1)
        return {"type": "null"} in (schema.get("anyOf") or schema.get("oneOf") or [])


def _last(reference: str) -> str:
    return reference.rpartition("/")[2].replace("~1", "/").replace("~0", "~")


def _types(schema: dict[str, Any]) -> list[str]:
    """The types of a schema. Where it names none (an enum of pydantic's with mixed values), they are read from the rest."""
    given = schema.get("type")
    values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
    if values is not None:
        of = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
        if not isinstance(values, list) or not values or any(type(value) not in of for value in values):
            raise _NotStrict
        given = given or list(dict.fromkeys(of[type(value)] for value in values))
    if given is None:
        given = "object" if "properties" in schema else "array" if "items" in schema else None
    types = [given] if isinstance(given, str) else given
    if not isinstance(types, list) or not types or any(kind not in TYPES for kind in types):
        raise _NotStrict  # an empty schema, which takes anything, above all
    return types


def _is_taken(key: str, value: object) -> bool:
    if key == "format":
        return value in FORMATS
    if key == "pattern":
        return isinstance(value, str) and _UNSUPPORTED_PATTERN.search(value) is None
    return True


def _told(schema: dict[str, Any]) -> dict[str, str]:
    """The description, with the words for what is left out of the schema."""
    notes = [
        words.format(schema[key])
        for key, words in WORDS.items()
        if key in schema and not (key in TYPES["string"] and _is_taken(key, schema[key]))
    ]
    if schema.get("uniqueItems") is True:
        notes.append("no item twice")
    if "default" in schema:
        notes.append(f"default: {json.dumps(schema['default'], ensure_ascii=False, default=str)}")
    description = schema.get("description")
    sentence = "; ".join(notes)
    texts = [description.strip() if isinstance(description, str) else ""]
    texts.append(f"({sentence[0].upper()}{sentence[1:]}.)" if notes else "")
    return {"description": " ".join(filter(None, texts))} if any(texts) else {}


def _check_limits(adapted: dict[str, Any]) -> None:
    """Refuse what the API refuses for its size, and alternatives that begin alike."""
    definitions: dict[str, Any] = adapted.get("$defs", {})
    properties, values = 0, 0
    characters = sum(map(len, definitions))
    for node in _nodes([adapted, *definitions.values()]):
        names, enum = node.get("properties", {}), node.get("enum", [])
        properties, values = properties + len(names), values + len(enum)
        told = [value for value in (*enum, node.get("const")) if isinstance(value, str)]
        length = sum(map(len, told))
        characters += length + sum(map(len, names))
        if len(told) > LONG_ENUM and length > MAX_LONG_ENUM:
            raise _NotStrict
        _tell_apart(node.get("anyOf", []), definitions)
    if properties > MAX_PROPERTIES or values > MAX_ENUM or characters > MAX_NAMES:
        raise _NotStrict
    if _levels(adapted, definitions, {}) > MAX_LEVELS:
        raise _NotStrict


def _tell_apart(branches: list[dict[str, Any]], definitions: Mapping[str, Any]) -> None:
    """Refuse alternatives that begin alike.

    "Objects provided via 'anyOf' must not share identical first keys", says the API: it must know which one is written. A
    constant behind the same name tells them apart.
    """
    known: dict[str, set[str]] = {}
    seen: set[str] = set()
    branches = [*branches]
    while branches:
        branch = branches.pop()
        reference = branch.get("$ref", "#")
        if reference not in seen and reference != "#":
            seen.add(reference)
            branches.append(definitions[_last(reference)])
        branches += branch.get("anyOf", [])
        for name, inner in itertools.islice(branch.get("properties", {}).items(), 1):
            values = {repr(value) for value in inner.get("enum", [inner["const"]] if "const" in inner else [])}
            if name in known and (not values or not known[name] or values & known[name]):
                raise _NotStrict
            known[name] = values | known.get(name, set())


def _nodes(schemas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while schemas:
        found.append(schemas.pop())
        schemas += _below(found[-1])
    return found


def _below(node: dict[str, Any]) -> list[dict[str, Any]]:
    items = [node["items"]] if "items" in node else []
    return [*node.get("properties", {}).values(), *node.get("anyOf", []), *items]


def _levels(node: dict[str, Any], definitions: Mapping[str, Any], known: dict[str, int]) -> int:
    """How many objects and lists stand in each other. What refers to itself is counted once around."""
    if "$ref" in node:
        name = _last(node["$ref"])
        if name != "#" and name not in known:
            known[name] = 0
            known[name] = _levels(definitions[name], definitions, known)
        return known.get(name, 0)
    own = 1 if "properties" in node or "items" in node else 0
    return own + max((_levels(inner, definitions, known) for inner in _below(node)), default=0)
