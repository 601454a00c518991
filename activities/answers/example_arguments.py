"""A minimal valid example of what a JSON schema takes: shown to a model that repeats a call which is not what a tool takes.

Only what is required is given, by the schema's own words where it has some (`examples`, `default`, `const`, `enum`), and by
telling placeholders elsewhere: `"<customer>"` says more than `"string"`. The same schema gives the same example, always.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

from jsonschema import Draft202012Validator

__all__ = ["NoExample", "example"]

MAX_DEPTH, MAX_ITEMS, MAX_LENGTH, MAX_VALUES = 12, 50, 1_000, 500
"""An example that is deeper, longer or has more values than this shows nobody anything."""

FORMATS = {
    "date-time": "2025-01-31T12:00:00Z",
    "date": "2025-01-31",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "someone@example.com",
    "idn-email": "someone@example.com",
    "name-email": "Someone <someone@example.com>",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "iri": "https://example.com/",
    "uri-reference": "/path",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "ipvanyaddress": "192.0.2.1",
    "ipv4network": "192.0.2.0/24",
    "ipv6network": "2001:db8::/32",
    "ipvanynetwork": "192.0.2.0/24",
    "ipv4interface": "192.0.2.1/24",
    "ipv6interface": "2001:db8::1/32",
    "ipvanyinterface": "192.0.2.1/24",
    "json-string": "{}",
    "json-pointer": "/name",
    "regex": "^a+$",
    "uuid": "00000000-0000-4000-8000-000000000000",
    **{f"uuid{version}": f"00000000-0000-{version}000-8000-000000000000" for version in range(1, 9)},
}
"""Formats of JSON schema, and those that pydantic writes."""


class NoExample(ValueError):
    """None could be made of this schema."""


def example(schema: dict[str, Any]) -> Any:
    """Make a minimal example.

    Raises:
        NoExample: the schema asks for what is not made here (a pattern that is not simple, a value within itself), or for
            what cannot be.
    """
    try:
        made = _Maker(schema).make(schema, "value", ())
        valid = Draft202012Validator(schema).is_valid(made)
    except NoExample:
        raise
    except Exception as error:  # a schema that is none: jsonschema raises by kinds of its own, and whatever `re` does
        raise NoExample(f"of this schema no example can be made: {type(error).__name__}") from error
    if not valid:
        raise NoExample("the example that was made of this schema does not fit it")
    return made


class _Maker:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = MAX_VALUES

    def make(self, schema: Any, name: str, above: tuple[str, ...], index: int = 0) -> Any:
        """A value of a schema. `above`: the references it is made within; `index`: which one of a list it is."""
        self._left -= 1
        if self._left < 0 or len(above) > MAX_DEPTH:
            raise NoExample("an example would be too large")
        if not isinstance(schema, dict):
            if schema is True:
                return f"<{name}>"
            raise NoExample("nothing fits `false`")
        if "const" in schema:
            return schema["const"]
        for values in (
            schema.get("examples"),
            [schema["default"]] if "default" in schema else None,
            schema.get("enum"),
        ):
            if isinstance(values, list) and values:
                value = values[index % len(values)]
                if self._fits(value, schema):
                    return value
        if "$ref" in schema:
            reference = schema["$ref"]
            if reference in above:
                raise NoExample("it holds itself")
            siblings = {key: value for key, value in schema.items() if key != "$ref"}
            return self.make({**self._target(reference), **siblings}, name, (*above, reference), index)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._branch(schema, key, name, above, index)
        if "allOf" in schema:
            return self.make(_merged(schema, self._target), name, above, index)
        return self._typed(schema, name, (*above, ""), index)

    def _typed(self, schema: dict[str, Any], name: str, above: tuple[str, ...], index: int) -> Any:
        kinds = schema.get("type") or (
            "object" if "properties" in schema else "array" if "items" in schema else "string"
        )
        kind = kinds if isinstance(kinds, str) else next((kind for kind in kinds if kind != "null"), "null")
        match kind:
            case "object":
                return self._object(schema, name, above)
            case "array":
                return self._array(schema, name, above)
            case "string":
                return _string(schema, name, index)
            case "integer" | "number":
                return _number(schema, whole=kind == "integer", index=index)
            case "boolean":
                return index % 2 == 0
            case "null":
                return None
            case _:
                raise NoExample("it has an unknown type")

    def _object(self, schema: dict[str, Any], name: str, above: tuple[str, ...]) -> dict[str, Any]:
        properties = schema.get("properties", {})
        rest = schema.get("additionalProperties", True)
        needed = list(schema.get("required", []))
        fewest = schema.get("minProperties", 0)
        if fewest > MAX_ITEMS:
            raise NoExample("an example would be too large")
        needed += [key for key in properties if key not in needed][: max(0, fewest - len(needed))]
        made = {key: self.make(properties.get(key, rest), key, above) for key in needed}
        keys = schema.get("propertyNames", {})
        for number in range(fewest - len(made)):
            key = self.make({"type": "string", **keys}, "key", above, number)
            made[key] = self.make(rest, name, above, number)
        return made

    def _array(self, schema: dict[str, Any], name: str, above: tuple[str, ...]) -> list[Any]:
        first = schema.get("prefixItems", [])
        fewest = max(schema.get("minItems", 0), 1 if schema.get("contains") else 0)
        if fewest > MAX_ITEMS:
            raise NoExample("an example would be too large")
        items = schema.get("contains", schema.get("items", True))
        # `prefixItems` alone requires none; what pydantic writes for a tuple has `minItems` too.
        return [self.make(first[at] if at < len(first) else items, name, above, at) for at in range(fewest)]

    def _branch(self, schema: dict[str, Any], key: str, name: str, above: tuple[str, ...], index: int) -> Any:
        """Of the first alternative that has an example; null only where nothing else does."""
        rest = {inner: value for inner, value in schema.items() if inner not in (key, "discriminator", "title")}
        branches = sorted(schema[key], key=lambda branch: branch == {"type": "null"})
        for branch in branches:
            both = {**rest, "allOf": [*rest.get("allOf", []), branch]}
            try:
                return self.make(both, name, above, index)
            except NoExample:
                continue
        raise NoExample("no alternative has an example")

    def _target(self, reference: object) -> dict[str, Any]:
        target: Any = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise NoExample("it refers to another document")
        for part in filter(None, reference[1:].split("/")):
            part = part.replace("~1", "/").replace("~0", "~")
            target = target.get(part) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            raise NoExample("it refers to what is not there")
        return target

    def _fits(self, value: Any, schema: dict[str, Any]) -> bool:
        definitions = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
        return bool(Draft202012Validator({**definitions, **schema}).is_valid(value))


def _merged(schema: dict[str, Any], target: Any) -> dict[str, Any]:
    """`allOf` as one schema. What is said twice is taken from the later part, but for properties, which are joined."""
    merged = {key: value for key, value in schema.items() if key != "allOf"}
    for part in schema["allOf"]:
        if not isinstance(part, dict):
            raise NoExample("a part of it is no schema")
        if "$ref" in part and (len(schema["allOf"]) > 1 or merged.keys() & part.keys()):
            part = {**target(part["$ref"]), **{key: value for key, value in part.items() if key != "$ref"}}
        for key, value in part.items():
            if key == "properties":
                merged[key] = {**merged.get(key, {}), **value}
            elif key == "required":
                merged[key] = [*merged.get(key, []), *(name for name in value if name not in merged.get(key, []))]
            elif key not in ("description", "title") or key not in merged:
                merged[key] = value
    return merged


def _string(schema: dict[str, Any], name: str, index: int) -> str:
    fewest, most = schema.get("minLength", 0), schema.get("maxLength", MAX_LENGTH)
    if fewest > MAX_LENGTH:
        raise NoExample("an example would be too long")
    name = f"{name}{index + 1}" if index else name
    candidates: list[str] = []
    if "format" in schema and "pattern" not in schema and schema["format"] in FORMATS:
        candidates = [FORMATS[schema["format"]]]
    else:
        placeholder = f"<{name}>"
        longer = placeholder[:-1] + "_" * (fewest - len(placeholder)) + ">"
        candidates = [placeholder, longer, name, name[:most], "abc"[:most], "a" * fewest, "1" * max(fewest, 1)]
        if "pattern" in schema:
            candidates += _matching(schema["pattern"], fewest)
    for text in candidates:
        if fewest <= len(text) <= most and ("pattern" not in schema or re.search(schema["pattern"], text)):
            return text
    raise NoExample("no string is known that fits it")


def _number(schema: dict[str, Any], *, whole: bool, index: int) -> int | float:
    """1 if it may be, else what is nearest to the bounds."""
    low = [Fraction(str(schema[key])) for key in ("minimum", "exclusiveMinimum") if key in schema]
    high = [Fraction(str(schema[key])) for key in ("maximum", "exclusiveMaximum") if key in schema]
    step = Fraction(str(schema["multipleOf"])) if "multipleOf" in schema else Fraction(1)
    if whole and step.denominator != 1:
        step = Fraction(step.numerator)
    least, most = max(low, default=None), min(high, default=None)
    begin = Fraction(1) if least is None else max(least, Fraction(1))
    starts = [step * math.ceil(begin / step)]
    starts += [step * math.ceil(least / step), step * (math.floor(least / step) + 1)] if least is not None else []
    starts += [step * math.floor(most / step), step * (math.ceil(most / step) - 1)] if most is not None else []
    if not whole and "multipleOf" not in schema:
        starts += [(least + most) / 2] if least is not None and most is not None else []
    numbers = {key: schema[key] for key in _BOUNDS if key in schema}
    fitting = Draft202012Validator(numbers)
    for start in starts:
        for moved in (start + index * step, start - index * step):
            value = int(moved) if moved.denominator == 1 else float(moved)
            if fitting.is_valid(value) and (isinstance(value, int) or not whole):
                return value
    raise NoExample("no number is known that fits it")


_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
_ATOM = re.compile(
    r"\\(?P<escape>.)|\[(?P<none>\^?)(?P<set>(?:\\.|[^\]\\])+)\]|(?P<any>\.)|(?P<char>[^\\\[\](){}*+?|^$.])", re.DOTALL
)
_TIMES = re.compile(r"(?:\{(?P<least>\d+)(?:,(?P<most>\d*))?\}|(?P<mark>[*+?]))[?+]?")
_CLASSES = {"d": "0", "w": "a", "s": " ", "D": "a", "W": "-", "S": "a", "n": "\n", "t": "\t", "r": "\r"}


def _matching(pattern: str, fewest: int) -> list[str]:
    """What may match a simple pattern, a row of characters and classes, each with its count. The caller tries it."""
    row: list[tuple[str, int, int]] = []
    at, text = 0, pattern.removeprefix("^").removesuffix("$")
    text = text.split("|")[0] if "|" in text and "(" not in text else text
    while at < len(text):
        atom = _ATOM.match(text, at)
        if atom is None:
            return []
        times = _TIMES.match(text, atom.end())
        least, most = _count(times) if times else (1, 1)
        if least > MAX_LENGTH:
            return []
        row.append((_character(atom), least, most))
        at = times.end() if times else atom.end()
    missing = fewest - sum(least for _, least, _ in row)
    made = []
    for char, least, most in row:
        more = max(0, min(missing, most - least))
        missing -= more
        made.append(char * (least + more))
    return ["".join(made)]


def _count(times: re.Match[str]) -> tuple[int, int]:
    if mark := times["mark"]:
        return int(mark == "+"), 1 if mark == "?" else MAX_LENGTH
    least = int(times["least"])
    return least, least if times["most"] is None else int(times["most"] or MAX_LENGTH)


def _character(atom: re.Match[str]) -> str:
    if escape := atom["escape"]:
        return _CLASSES.get(escape, escape)
    if members := atom["set"]:
        tried = [*"aA0-_ .", *(chr(code) for code in range(33, 127))]
        return next((char for char in tried if re.match(f"[{atom['none']}{members}]", char)), "a")
    return "a" if atom["any"] else atom["char"]
