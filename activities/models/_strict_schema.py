"""The JSON schema of an agent's output in the form that OpenAI's strict mode accepts.

In strict mode the model can only write what fits the schema. The rules are those of OpenAI's guide "Structured model
outputs" (sections "Supported schemas" and "Some type-specific keywords are not yet supported"), and what its API answers. A
schema that strict mode cannot express is sent non-strict. Answers are validated afterwards in either case, so a schema may
become wider: a constraint that strict mode does not accept is written into the description.

It may never become a different schema. In strict mode every property is required. That loses nothing for a property with a
default (the description names it) and for one that may be null. A property that can only be left out has no strict form: the
model would have to invent a value, or to write a null that the original schema refuses.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mulligan.schema.subschemas import References
from mulligan.wire.agent_facts import ToolDefinition

MAX_LEVELS, MAX_PROPERTIES, MAX_ENUM_VALUES, MAX_CHARACTERS = 10, 5_000, 1_000, 120_000
"""The guide's limits. Characters are those of all names of properties and definitions, and of all texts in enums. Every
object and every list counts as a level here: the guide does not define the word."""
LONG_ENUM, MAX_LONG_ENUM_CHARACTERS = 250, 15_000
"""An enum of more than 250 texts may have 15,000 characters in all."""

_BOUNDS = ("multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum")
TYPES = {
    "string": ("pattern", "format"),
    "number": _BOUNDS,
    "integer": _BOUNDS,
    "array": ("minItems", "maxItems"),
    "boolean": (),
    "null": (),
    "object": (),
}
"""Each type with the constraints that strict mode accepts for it."""
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_UNSUPPORTED_PATTERN = re.compile(r"\(\?(?!:)|\\[1-9bBpPk]")
"""The API refuses lookarounds (pydantic's pattern of a Decimal has one); no automaton supports the others."""
INEXPRESSIBLE = frozenset(
    {
        *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"),
        *("patternProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems"),
        *("prefixItems", "additionalItems", "contains", "minContains", "maxContains", "minProperties"),
        *("$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor"),
    }
)
"""Without these keywords the rest would be a different schema, and answers that fit it would often be refused."""
_SHAPE = frozenset({"type", "properties", "required", "items", "enum", "const", "$ref", "anyOf", "oneOf"})
"""A schema with a reference or a union has no other of these keywords: they would have to be merged."""
_IN_WORDS = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "format": "format: {}",
    "pattern": "matches the regular expression {}",
    "contentEncoding": "encoded as {}",
    "contentMediaType": "of media type {}",
}
_TYPE_OF_VALUE = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}

_ANSWER_WITH_JSON = (
    "Write your final answer as one JSON document that is valid against the following JSON schema, and nothing else, "
    "without a code fence:\n{schema}"
)


class _NotStrictError(ValueError):
    """Strict mode cannot express the schema."""


def strict(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema's strict form, or None if it has none. `schema` itself is not changed."""
    try:
        return _Adapter(schema).adapt()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # strict mode cannot express it, or it is not a JSON schema at all


def strict_tool(tool: ToolDefinition) -> dict[str, Any]:
    """A tool as OpenAI's APIs take it: a strict one with the strict form of its schema, or not strict where it has none."""
    schema = strict(tool.parameters) if tool.strict else None
    written = tool.model_dump(mode="json", exclude={"strict"})
    return written if schema is None else {**written, "parameters": schema, "strict": True}


def schema_in_words(schema: dict[str, Any]) -> str:
    """Instructions to write an answer that fits the schema, for an API that does not accept the schema itself."""
    return _ANSWER_WITH_JSON.format(schema=json.dumps(schema, ensure_ascii=False))


class _Adapter:
    """Builds the strict form of one schema, and counts what the guide limits while it does."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = {key: value for key, value in root.items() if key not in ("$defs", "definitions")}
        self._references = References(root)
        self._definitions: dict[str, dict[str, Any]] = {}
        self._unions: list[list[dict[str, Any]]] = []
        self._properties = self._enum_values = self._characters = 0

    def adapt(self) -> dict[str, Any]:
        adapted = self._schema(self._references.followed(self._root))  # the root of a recursive model is a reference
        _require(adapted.get("type") == "object")  # the API refuses `anyOf` at the root, and all that is not an object
        if self._definitions:
            adapted["$defs"] = dict(sorted(self._definitions.items()))
            self._characters += sum(map(len, self._definitions))
        _require(self._properties <= MAX_PROPERTIES and self._enum_values <= MAX_ENUM_VALUES)
        _require(self._characters <= MAX_CHARACTERS and _levels(adapted, self._definitions, {}) <= MAX_LEVELS)
        for union in self._unions:
            _check_first_keys(union, self._definitions)
        return adapted

    def _schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        _require(not INEXPRESSIBLE & schema.keys())
        if "allOf" in schema:
            (part,) = schema["allOf"]  # several parts would have to be merged, and so would keywords that are in both
            rest = {key: value for key, value in schema.items() if key != "allOf"}
            _require(not part.keys() & rest.keys() - {"title", "description", "default"})
            return self._schema({**part, **rest})
        description = _description(schema)
        key = next((key for key in ("$ref", "anyOf", "oneOf") if key in schema), None)
        if key is None:
            return self._typed(schema, description)
        _require(bool(schema[key]) and not schema.keys() & _SHAPE - {key})
        if key == "$ref":
            return self._reference(schema[key], description)
        union = [self._schema(branch) for branch in schema[key]]
        self._unions.append(union)
        return {"anyOf": union, **description}

    def _reference(self, reference: str, description: dict[str, str]) -> dict[str, Any]:
        name = _name_in(reference)
        if name and name not in self._definitions:
            self._definitions[name] = {}  # where it refers to itself, it is known already
            self._definitions[name] = self._schema(self._references.target(reference))
        adapted = {"$ref": f"#/$defs/{reference.rpartition('/')[2]}" if name else "#"}
        # "$ref cannot have keywords {'description'}", says the API; `anyOf` can.
        return {"anyOf": [adapted], **description} if description else adapted

    def _typed(self, schema: dict[str, Any], description: dict[str, str]) -> dict[str, Any]:
        types = _types(schema)
        adapted: dict[str, Any] = {"type": types[0] if len(types) == 1 else types, **description}
        adapted.update(copy.deepcopy({key: schema[key] for key in ("enum", "const") if key in schema}))
        for kind in types:
            adapted.update(
                {key: schema[key] for key in TYPES[kind] if key in schema and _is_accepted(key, schema[key])}
            )
        if "array" in types:
            adapted["items"] = self._schema(schema["items"])
        if "object" in types:
            adapted |= self._object(schema)
        texts = [value for value in (*schema.get("enum", ()), schema.get("const")) if isinstance(value, str)]
        characters = sum(map(len, texts))
        _require(len(texts) <= LONG_ENUM or characters <= MAX_LONG_ENUM_CHARACTERS)
        self._enum_values += len(schema.get("enum", ()))
        self._characters += characters
        return adapted

    def _object(self, schema: dict[str, Any]) -> dict[str, Any]:
        properties, required = schema["properties"], schema.get("required", [])
        _require(schema.get("additionalProperties", False) is False and set(required) <= properties.keys())
        _require(all(name in required or self._may_be_required(inner) for name, inner in properties.items()))
        self._properties += len(properties)
        self._characters += sum(map(len, properties))
        adapted = {name: self._schema(inner) for name, inner in properties.items()}
        return {"properties": adapted, "required": list(adapted), "additionalProperties": False}

    def _may_be_required(self, schema: dict[str, Any]) -> bool:
        """Whether a property that may be left out loses nothing where it is required: see the module's docstring."""
        if "default" in schema or schema.get("type") == "null" or "null" in schema.get("type", ()):
            return True
        if "$ref" in schema:
            return bool(_name_in(schema["$ref"])) and self._may_be_required(self._references.target(schema["$ref"]))
        return {"type": "null"} in (schema.get("anyOf") or schema.get("oneOf") or [])


def _require(is_strict: bool) -> None:
    if not is_strict:
        raise _NotStrictError


def _name_in(reference: str) -> str:
    """The name of the definition that a reference points to, or "" for the root."""
    match = re.fullmatch(r"#(?:/(?:\$defs|definitions)/([^/]+))?", reference)
    if match is None:
        raise _NotStrictError
    return (match[1] or "").replace("~1", "/").replace("~0", "~")


def _types(schema: dict[str, Any]) -> list[str]:
    """The types of a schema; where it names none (pydantic's enum of mixed values), they are read from its values."""
    given = schema.get("type")
    if "enum" in schema or "const" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        of_values = list(dict.fromkeys(_TYPE_OF_VALUE.get(type(value), "unknown") for value in values))
        _require(isinstance(values, list) and bool(values) and "unknown" not in of_values)
        given = given or of_values
    if given is None:
        given = "object" if "properties" in schema else "array" if "items" in schema else None
    types: Any = [given] if isinstance(given, str) else given
    _require(isinstance(types, list) and bool(types) and all(kind in TYPES for kind in types))
    return list(types)


def _is_accepted(key: str, value: Any) -> bool:
    if key == "pattern":
        return _UNSUPPORTED_PATTERN.search(value) is None
    return key != "format" or value in FORMATS


def _description(schema: dict[str, Any]) -> dict[str, str]:
    """The description, with the constraints that the strict form leaves out."""
    left_out = [
        key for key in _IN_WORDS if key in schema and not (key in TYPES["string"] and _is_accepted(key, schema[key]))
    ]
    notes = [_IN_WORDS[key].format(schema[key]) for key in left_out]
    if schema.get("uniqueItems") is True:
        notes.append("no item twice")
    if "default" in schema:
        notes.append(f"default: {json.dumps(schema['default'], ensure_ascii=False, default=str)}")
    sentence = "; ".join(notes)
    texts = [schema.get("description", "").strip(), f"({sentence[0].upper()}{sentence[1:]}.)" if notes else ""]
    return {"description": " ".join(filter(None, texts))} if any(texts) else {}


def _check_first_keys(union: list[dict[str, Any]], definitions: Mapping[str, Any]) -> None:
    """Refuse alternatives whose first key is the same, unless a constant behind that key tells them apart.

    "Objects provided via 'anyOf' must not share identical first keys", says the API.
    """
    known: dict[str, set[str]] = {}
    for branch in _alternatives(union, definitions, set()):
        for name, inner in list(branch.get("properties", {}).items())[:1]:
            constants = {repr(value) for value in inner.get("enum", [inner["const"]] if "const" in inner else [])}
            _require(name not in known or bool(constants and known[name] and not constants & known[name]))
            known[name] = constants | known.get(name, set())


def _alternatives(
    union: list[dict[str, Any]], definitions: Mapping[str, Any], seen: set[str]
) -> Iterator[dict[str, Any]]:
    """What a union chooses from, through references and unions in it."""
    for branch in union:
        reference = branch.get("$ref", "#")
        if reference not in {*seen, "#"}:
            seen.add(reference)
            yield from _alternatives([definitions[_name_in(reference)]], definitions, seen)
        yield branch
        yield from _alternatives(branch.get("anyOf", []), definitions, seen)


def _levels(node: dict[str, Any], definitions: Mapping[str, Any], known: dict[str, int]) -> int:
    """How deeply objects and lists are nested. A definition that refers to itself counts once."""
    if "$ref" in node:
        name = _name_in(node["$ref"])
        if name and name not in known:
            known[name] = 0
            known[name] = _levels(definitions[name], definitions, known)
        return known.get(name, 0)
    inner = [
        *node.get("properties", {}).values(),
        *node.get("anyOf", []),
        *([node["items"]] if "items" in node else []),
    ]
    own = 1 if "properties" in node or "items" in node else 0
    return own + max((_levels(each, definitions, known) for each in inner), default=0)
