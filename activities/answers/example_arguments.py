"""Generate a minimal valid example of a JSON schema: shown to a model that repeats a call with invalid arguments.

The example contains required fields only, with the schema's own values (`const`, `examples`, `default`, `enum`) where it has
some, and placeholders that contain the field's name elsewhere. The same schema always gives the same example. Where the
generator finds no valid example, there is none: the feedback says what is wrong without it.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

from jsonschema import Draft202012Validator

from mulligan.schema.subschemas import References

MAX_DEPTH, MAX_LENGTH, MAX_VALUES = 12, 1_000, 100
"""Limits of an example's depth, of its strings, and of its number of values. A model would not read a larger one."""

FORMATS = {
    **{"date-time": "2025-01-31T12:00:00Z", "date": "2025-01-31", "time": "12:00:00Z", "duration": "P1D"},
    **{"email": "someone@example.com", "uri": "https://example.com/", "hostname": "example.com"},
    **{"ipv4": "192.0.2.1", "ipv6": "2001:db8::1", "ipv4network": "192.0.2.0/24", "ipv6network": "2001:db8::/32"},
    **{f"uuid{n or ''}": f"00000000-0000-{n or 4}000-8000-000000000000" for n in range(9)},
}
"""Formats of JSON schema, and some that only pydantic writes."""


class NoExample(ValueError):
    """The generator found no valid example of the schema."""


def example(schema: dict[str, Any]) -> Any:
    """Generate a minimal valid example.

    Raises:
        NoExample: there is none, or the generator does not find one (for a complicated `pattern`).
    """
    try:
        value = _Generator(schema).value(schema, "value", ())
        is_valid = Draft202012Validator(schema).is_valid(value)
    except NoExample:
        raise
    except Exception as error:  # an invalid schema: jsonschema and `re` raise errors of many types
        raise NoExample(f"no example of this schema: {type(error).__name__}") from error
    if not is_valid:
        raise NoExample("the generated example is not valid")
    return value


class _Generator:
    def __init__(self, root: dict[str, Any]) -> None:
        self._references = References(root)
        self._definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
        self._values_left = MAX_VALUES

    def value(self, schema: Any, name: str, parents: tuple[str, ...], index: int = 0) -> Any:
        """A value for a schema. `parents`: the references that it is within. `index`: its index in a list."""
        self._values_left -= 1
        if self._values_left < 0 or len(parents) > MAX_DEPTH:
            raise NoExample("an example would be too large")
        if schema is True:
            return f"<{name}>"
        if not isinstance(schema, dict):
            raise NoExample("no value is valid")
        own = [schema[key] for key in ("const", "default") if key in schema]
        own = [*schema.get("examples", []), *own, *schema.get("enum", [])]
        for candidate in own[index % max(1, len(own)) :]:
            if self._is_valid(candidate, schema):
                return candidate
        rest = dict(schema)
        if (reference := rest.pop("$ref", None)) is not None:
            if reference in parents:
                raise NoExample("the schema contains itself")
            return self.value(_merged(self._target(reference), rest), name, (*parents, reference), index)
        if (parts := rest.pop("allOf", None)) is not None:
            for part in parts:
                target = self._target(part["$ref"]) if "$ref" in part else {}
                rest = _merged(rest, target, {key: part[key] for key in part if key != "$ref"})
            return self.value(rest, name, (*parents, ""), index)
        if (branches := rest.pop("anyOf", None) or rest.pop("oneOf", None)) is not None:
            return self._alternative(branches, rest, name, parents, index)
        return self._typed(schema, name, (*parents, ""), index)

    def _alternative(self, branches: list[Any], rest: dict[str, Any], name: str, parents: Any, index: int) -> Any:
        """An example of the first alternative that has one; null only if no other has."""
        for branch in sorted(branches, key=lambda branch: branch == {"type": "null"}):
            try:
                return self.value(_merged(rest, branch) if isinstance(branch, dict) else branch, name, parents, index)
            except NoExample:
                continue
        raise NoExample("no alternative has an example")

    def _typed(self, schema: dict[str, Any], name: str, parents: tuple[str, ...], index: int) -> Any:
        types = schema.get("type") or ("object" if "properties" in schema else "string")
        match types if isinstance(types, str) else next((each for each in types if each != "null"), "null"):
            case "object":
                return self._object(schema, name, parents)
            case "array":
                items, first = schema.get("items", True), schema.get("prefixItems", [])
                count = range(schema.get("minItems", 0))
                return [self.value(first[n] if n < len(first) else items, name, parents, n) for n in count]
            case "string":
                return self._first_valid(schema, _strings(schema, f"{name}{index + 1}" if index else name))
            case "integer" | "number" as number:
                return self._first_valid(schema, _numbers({**schema, "type": number}, index))
            case "boolean":
                return index % 2 == 0
            case "null":
                return None
        raise NoExample("the type is unknown")

    def _object(self, schema: dict[str, Any], name: str, parents: tuple[str, ...]) -> dict[str, Any]:
        properties, other = schema.get("properties", {}), schema.get("additionalProperties", True)
        value = {key: self.value(properties.get(key, other), key, parents) for key in schema.get("required", [])}
        for number in range(schema.get("minProperties", 0) - len(value)):
            key = self.value({"type": "string", **schema.get("propertyNames", {})}, "key", parents, number)
            value[key] = self.value(other, name, parents, number)
        return value

    def _target(self, reference: str) -> dict[str, Any]:
        target = self._references.target(reference)
        if not isinstance(target, dict):
            raise NoExample("a reference of the schema leads nowhere in it")
        return target

    def _first_valid(self, schema: dict[str, Any], candidates: list[Any]) -> Any:
        for candidate in candidates:
            if self._is_valid(candidate, schema):
                return candidate
        raise NoExample("no candidate is valid")

    def _is_valid(self, value: Any, schema: dict[str, Any]) -> bool:
        return bool(Draft202012Validator({**self._definitions, **schema}).is_valid(value))


def _merged(*schemas: dict[str, Any]) -> dict[str, Any]:
    """Schemas as one: `properties` and `required` are joined, of any other keyword the last one counts."""
    merged: dict[str, Any] = {}
    for schema in schemas:
        properties = {**merged.get("properties", {}), **schema.get("properties", {})}
        required = [*merged.get("required", []), *schema.get("required", [])]
        merged |= {**schema, **({"properties": properties} if properties else {})}
        merged |= {"required": list(dict.fromkeys(required))} if required else {}
    return merged


def _strings(schema: dict[str, Any], name: str) -> list[str]:
    """Candidates: the format's example, the name as a placeholder, and one character as often as the schema requires."""
    least, most, pattern = schema.get("minLength", 0), schema.get("maxLength", MAX_LENGTH), schema.get("pattern", "")
    length = max(least, 1, sum(map(int, re.findall(r"\{(\d+)", pattern))))
    if length > MAX_LENGTH:
        raise NoExample("an example would be too large")
    formatted = [FORMATS[schema["format"]]] if schema.get("format") in FORMATS else []
    placeholder = f"<{name}{'_' * (least - len(name) - 2)}>"
    return [*formatted, placeholder, name, name[:most], *(char * length for char in "aA0")]


def _numbers(schema: dict[str, Any], index: int) -> list[int | float]:
    """Candidates: the multiple of the step that is nearest to 1 from above, those nearest to the bounds, and the middle."""
    step = Fraction(str(schema.get("multipleOf", 1)))
    if schema["type"] == "integer":
        step = Fraction(step.numerator)
    low = [Fraction(str(schema[key])) for key in ("minimum", "exclusiveMinimum") if key in schema]
    high = [Fraction(str(schema[key])) for key in ("maximum", "exclusiveMaximum") if key in schema]
    multiples = [math.ceil(max([Fraction(1), *low]) / step)]
    multiples += [n for bound in low for n in (math.ceil(bound / step), math.floor(bound / step) + 1)]
    multiples += [n for bound in high for n in (math.floor(bound / step), math.ceil(bound / step) - 1)]
    numbers = [(n + shift) * step for n in multiples for shift in (index, -index)]
    numbers += [(low[0] + high[0]) / 2] if low and high else []
    return [int(number) if number.denominator == 1 else float(number) for number in numbers]
