"""Conversion of JSON values that have another type than their schema asks for, but mean the same: "5" for an integer.

Arguments of `@tool` functions and of MCP tools are converted here, by the same rules, before they are validated:

- a text with a number, with true or false, or with a list or an object as JSON, where the schema does not allow a text;
- 0 or 1 for a boolean;
- null for an optional field that cannot be null: the field is left out, so that it has its default.

Nothing else is converted: true is no number, and a number is no text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pydantic import JsonValue

from mulligan.schema.json_limits import is_deeper
from mulligan.schema.json_schema import OWN_VALIDATOR
from mulligan.schema.subschemas import References

MOST_STEPS = 150_000
"""Pairs of a schema's part and a value's part that are looked at. An MCP server's schema may branch without end."""
MOST_FAULTS = 100
_COMBINED = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_NUMBER = re.compile(r"[+-]?\d+(_\d+)*(\.\d+(_\d+)*)?([eE][+-]?\d+)?", re.ASCII)
_WORDS = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}
_NOT_FINITE = "should be a finite number: JSON has no infinity and no NaN"
_NO_FORM = "is of none of the forms that are allowed"
_Parse = Callable[[str], JsonValue]
_Faults = tuple[tuple[Any, str], ...]
_Path = tuple[Any, ...]
"""(the path of the whole, a name or an index): a text is written of the paths of faults only. The root's is empty."""
_TIMES = frozenset({"date", "date-time", "time", "duration"})


class Conversion(NamedTuple):
    """A value after its conversion.

    Attributes:
        value: The value. Where nothing was converted, it is the value that was given.
        kinds: The types that parts of it were converted to; `null` for a field that was left out.
        faults: The parts whose type the schema does not allow, as (path, what is wrong). They quote no value.
        refused: Those of the faults that are faults for pydantic's types too: true for a number, a number for a date. All
            others may have a meaning that a user's type gives them.
        is_other: Whether it lacks a field, has an unknown one, or is none of the values of an `enum`. Where a schema has
            alternatives, another one is meant then.
    """

    value: JsonValue
    kinds: frozenset[str] = frozenset()
    faults: _Faults = ()
    refused: _Faults = ()
    is_other: bool = False

    def then(self, later: Conversion) -> Conversion:
        """This conversion, followed by a conversion of its value."""
        if not (later.kinds - self.kinds or later.faults or later.is_other):
            return Conversion(later.value, *self[1:])
        return Conversion(
            later.value,
            self.kinds | later.kinds,
            (self.faults + later.faults)[:MOST_FAULTS],
            (self.refused + later.refused)[:MOST_FAULTS],
            self.is_other or later.is_other,
        )


def convert(schema: dict[str, Any], value: JsonValue, parse: _Parse) -> Conversion:
    """Convert the parts of an object by a JSON schema.

    It checks types, and no other constraint. Of a schema that is too complex to be read within a limit, nothing is
    converted.

    Args:
        schema: The schema.
        value: The object; any other value is not converted.
        parse: Parses JSON, and raises a ValueError for a text that is not JSON.
    """
    if not isinstance(value, dict):
        return Conversion(value)
    try:
        conversion = _Converter(schema, parse).convert(schema, value, ())
    except (_TooComplex, RecursionError):
        return Conversion(value)
    if conversion.kinds and is_deeper(conversion.value):
        return Conversion(value)
    faults, refused = (
        tuple((_text(path), says) for path, says in each) for each in (conversion.faults, conversion.refused)
    )
    return conversion._replace(faults=faults, refused=refused)


class _TooComplex(Exception):
    """The schema and the value have more than `MOST_STEPS` pairs of parts."""


class _Allowed(NamedTuple):
    """The types and values that a part of a schema allows, and the names that it requires."""

    types: frozenset[str]
    scalars: frozenset[tuple[bool, JsonValue]]
    """Values with whether they are booleans: in Python, 1 equals True."""
    wholes: list[JsonValue]
    """The lists and objects among the values."""
    required: frozenset[str]


class _Converter:
    def __init__(self, root: dict[str, Any], parse: _Parse) -> None:
        self._references, self._parse, self._steps = References(root), parse, 0
        self._allowed: dict[int, _Allowed] = {}

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MOST_STEPS:
            raise _TooComplex

    def _allows(self, schema: dict[str, Any]) -> _Allowed:
        """The types, values and required names of a part of the schema. Each part is read once: an `enum` may have
        thousands of values.
        """
        if (allowed := self._allowed.get(id(schema))) is not None:
            return allowed
        values = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
        required = _list(schema.get("required"))
        self._count(len(values) + len(required))
        wholes: list[JsonValue] = [each for each in values if isinstance(each, list | dict)]
        scalars = frozenset((isinstance(each, bool), each) for each in values if not isinstance(each, list | dict))
        types = frozenset(_names(schema.get("type")) or map(_type, values))
        self._allowed[id(schema)] = allowed = _Allowed(types, scalars, wholes, frozenset(_names(required)))
        return allowed

    def convert(self, schema: Any, value: JsonValue, path: _Path) -> Conversion:
        self._count(1)
        if not isinstance(schema, dict) or OWN_VALIDATOR in schema:
            return Conversion(value)
        if not _COMBINED & schema.keys():
            return self._typed(schema, value, path)
        conversion = Conversion(value)
        target = self._references.target(schema.get("$ref"))
        for part in (target, *_list(schema.get("allOf"))):
            conversion = conversion.then(self.convert(part, conversion.value, path))
        for key in ("anyOf", "oneOf"):
            if branches := _list(schema.get(key)):
                conversion = conversion.then(self._alternative(branches, conversion.value, path))
        return conversion.then(self._typed(schema, conversion.value, path))

    def _alternative(self, branches: list[Any], value: JsonValue, path: _Path) -> Conversion:
        """The conversion by the best alternative that fits: it converts nothing, or else it makes no boolean."""
        conversions = [self.convert(branch, value, path) for branch in branches]
        of_type = [each for each in conversions if all(where is not path for where, _ in each.faults)]
        if len(of_type) == 1:
            return of_type[0]
        if not of_type:
            others = [each for each, branch in zip(conversions, branches, strict=True) if branch != {"type": "null"}]
            if len(others) == 1:
                return others[0]._replace(value=value, kinds=frozenset())
            faults = ((path, _NO_FORM),)
            return Conversion(value, faults=faults, refused=faults if any(each.refused for each in others) else ())
        of_form = [each for each in of_type if not each.is_other]
        if fitting := [each for each in of_form if not each.faults]:
            return min(fitting, key=lambda each: (bool(each.kinds), "boolean" in each.kinds))
        return of_form[0]._replace(value=value, kinds=frozenset()) if of_form else Conversion(value, is_other=True)

    def _typed(self, schema: dict[str, Any], value: JsonValue, path: _Path) -> Conversion:
        types, scalars, wholes, _ = self._allows(schema)
        kinds: frozenset[str] = frozenset()
        if types and not _is_of(value, types):
            converted = self._converted(value, types)
            if converted is None:
                faults = ((path, _fault(value, types)),)
                is_refused = (isinstance(value, bool) and bool(types & {"integer", "number"})) or (
                    isinstance(value, int | float) and schema.get("format") in _TIMES
                )
                return Conversion(value, faults=faults, refused=faults if is_refused else ())
            value, kinds = converted, frozenset({_type(converted) if _type(converted) in types else "number"})
        if isinstance(value, list | dict):
            self._count(len(wholes))
            is_other = bool(scalars or wholes) and value not in wholes
        else:
            is_other = bool(scalars or wholes) and (isinstance(value, bool), value) not in scalars
        conversion = Conversion(value, kinds, is_other=is_other)
        if isinstance(value, dict):
            return conversion.then(self._object(schema, value, path))
        return conversion.then(self._array(schema, value, path)) if isinstance(value, list) else conversion

    def _object(self, schema: dict[str, Any], value: dict[str, JsonValue], path: _Path) -> Conversion:
        properties, others = _dict(schema.get("properties")), schema.get("additionalProperties")
        required = self._allows(schema).required
        self._count(len(required))
        is_closed = others is False and "patternProperties" not in schema
        parts = Conversion(None, is_other=not required <= value.keys())
        converted: dict[str, JsonValue] = {}
        for name, inner in value.items():
            where = (path, name)
            if name in properties:
                part = self.convert(properties[name], inner, where)
                # Without a default, a field that is left out and a null may mean different things.
                is_optional = name not in required and "default" in _dict(properties[name])
                if inner is None and part.faults and is_optional:
                    parts = parts.then(Conversion(None, frozenset({"null"})))
                    continue
            elif "patternProperties" in schema:
                part = Conversion(inner)
            else:
                part = Conversion(inner, is_other=True) if is_closed else self.convert(others, inner, where)
            converted[name] = part.value
            parts = parts.then(part)
        return parts._replace(value=converted if parts.kinds else value)

    def _array(self, schema: dict[str, Any], value: list[JsonValue], path: _Path) -> Conversion:
        first, rest = schema.get("prefixItems"), schema.get("items")
        if isinstance(rest, list):  # as before the draft 2020-12
            first, rest = rest, schema.get("additionalItems")
        positions = _list(first)
        parts = Conversion(None)
        converted: list[JsonValue] = []
        for index, inner in enumerate(value):
            part = self.convert(positions[index] if index < len(positions) else rest, inner, (path, index))
            converted.append(part.value)
            parts = parts.then(part)
        return parts._replace(value=converted if parts.kinds else value)

    def _converted(self, value: JsonValue, types: frozenset[str]) -> JsonValue:
        """The value in one of the types; None if it has no such form."""
        if not isinstance(value, str):
            is_bit = isinstance(value, int | float) and not isinstance(value, bool) and value in (0, 1)
            return bool(value) if is_bit and "boolean" in types else None
        text = value.strip()
        if types & {"integer", "number"} and _NUMBER.fullmatch(text) and (number := _number(text, types)) is not None:
            return number
        if "boolean" in types and text.lower() in _WORDS:
            return _WORDS[text.lower()]
        if text.startswith(("[", "{")) and types & {"array", "object"}:
            try:
                parsed = self._parse(text)
            except ValueError:
                return None
            return parsed if _is_of(parsed, types) else None
        return None


def _number(text: str, types: frozenset[str]) -> int | float | None:
    """The number that a text spells; None if it is not of the types, or Python would make another number of it."""
    try:
        return int(text)
    except ValueError:  # a fraction, or thousands of digits
        number = float(text)
    if number.is_integer() and abs(number) < 2**53 and "number" not in types:
        return int(number)
    return number if math.isfinite(number) and "number" in types else None


def _fault(value: JsonValue, types: frozenset[str]) -> str:
    if isinstance(value, str) and types & {"number", "integer"}:
        try:
            if not math.isfinite(float(value)):
                return _NOT_FINITE
        except ValueError:
            pass
    return f"should be of type {' or '.join(sorted(types))}"


def _type(value: JsonValue) -> str:
    if isinstance(value, bool | None):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "number"
    return {str: "string", list: "array", dict: "object"}[type(value)]


def _is_of(value: JsonValue, types: frozenset[str]) -> bool:
    name = _type(value)
    return name in types or (name == "integer" and "number" in types)


def _text(path: _Path) -> str:
    parts: list[str] = []
    while path:
        path, part = path
        parts.append(f"[{part}]" if isinstance(part, int) else f".{part}")
    return "".join(reversed(parts)).removeprefix(".")


def _names(value: Any) -> set[str]:
    names: Iterable[Any] = [value] if isinstance(value, str) else _list(value)
    return {name for name in names if isinstance(name, str)}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
