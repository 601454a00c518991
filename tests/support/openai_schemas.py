"""Checks that the JSON schemas in a request are well formed, and in strict mode that OpenAI's strict mode accepts them."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from tests.support.openai_shapes import Refusal

TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}
MAPS_OF_SCHEMAS = {"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"}
LISTS_OF_SCHEMAS = {"anyOf", "oneOf", "allOf", "prefixItems"}
SCHEMAS = {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"}
NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
COUNTS = {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
TEXTS = {"title", "description", "format", "pattern", "$ref"}

STRICT_KEYWORDS = {
    *("type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs"),
    *("definitions", "title", "description", "pattern", "format", "minItems", "maxItems"),
    *NUMBERS,
}
STRICT_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}


def check_schema(schema: dict[str, Any], subject: str, param: str, code: str | None, *, strict: bool) -> None:
    """Refuse an invalid schema of a function's parameters or of an answer; `subject` names it, as in "function 'x'"."""
    checker = _Checker(schema, subject, param, code, strict)
    if schema.get("type") != "object":
        actual = schema.get("type", "None")
        checker.refuse((), f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{actual}\"'")
    for keyword in ("oneOf", "anyOf", "allOf", "enum", "not"):
        if keyword in schema:
            checker.refuse(
                (), "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level"
            )
    checker.check(schema, ())


class _Checker:
    """Checks one schema; `at` is the path of a part of it, as OpenAI's error messages print it."""

    def __init__(self, root: dict[str, Any], subject: str, param: str, code: str | None, strict: bool) -> None:
        self.root, self.subject, self.param, self.code, self.strict = root, subject, param, code, strict

    def refuse(self, at: tuple[str, ...], reason: str) -> NoReturn:
        where = f"In context={at}, " if at else ""
        raise Refusal(f"Invalid schema for {self.subject}: {where}{reason}.", self.param, self.code)

    def check(self, schema: object, at: tuple[str, ...]) -> None:
        if isinstance(schema, bool) and not self.strict:
            return
        if not isinstance(schema, dict):
            self.refuse(at, f"{schema!r} is not of type 'object', 'boolean'")
        for keyword, value in schema.items():
            self.check_keyword(keyword, value, at)
        if "$ref" in schema and not self.resolves(schema["$ref"]):
            self.refuse(at, f"reference can only point to definitions in the schema, '{schema['$ref']}' is not one")
        if self.strict:
            self.check_strict(schema, at)
        if is_type(schema, "array") and "items" not in schema:
            self.refuse((*at, "items"), "array schema missing items")

    def check_keyword(self, keyword: str, value: Any, at: tuple[str, ...]) -> None:
        """Check the value of one keyword, and the schemas inside it. An unknown keyword is checked in strict mode only."""
        if keyword in MAPS_OF_SCHEMAS:
            self.check_map(keyword, value, at)
        elif keyword in LISTS_OF_SCHEMAS:
            self.check_list(keyword, value, at)
        elif keyword in SCHEMAS:
            if not (keyword == "additionalProperties" and isinstance(value, bool)):
                self.check(value, (*at, keyword))
        elif keyword == "type" and not are_types(value):
            self.refuse(at, f"{value!r} is not valid under any of the given schemas")
        elif keyword == "required" and not is_list_of_names(value):
            self.refuse(at, "'required' must be an array of unique strings")
        elif keyword == "enum":
            self.check_list_is_not_empty(keyword, value, at)
        elif keyword in NUMBERS | COUNTS:
            self.check_number(keyword, value, at)
        elif keyword in TEXTS:
            self.check_text(keyword, value, at)

    def check_map(self, keyword: str, value: object, at: tuple[str, ...]) -> None:
        if not isinstance(value, dict):
            self.refuse(at, f"'{keyword}' must be an object")
        for name, inner in value.items():
            self.check(inner, (*at, keyword, name))

    def check_list(self, keyword: str, value: Any, at: tuple[str, ...]) -> None:
        self.check_list_is_not_empty(keyword, value, at)
        for index, inner in enumerate(value):
            self.check(inner, (*at, keyword, str(index)))

    def check_list_is_not_empty(self, keyword: str, value: object, at: tuple[str, ...]) -> None:
        if not isinstance(value, list) or not value:
            self.refuse(at, f"'{keyword}' must be a non-empty array")

    def check_number(self, keyword: str, value: object, at: tuple[str, ...]) -> None:
        if keyword in NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
            self.refuse(at, f"'{keyword}' must be a number")
        if keyword in COUNTS and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            self.refuse(at, f"'{keyword}' must be a non-negative integer")

    def check_text(self, keyword: str, value: object, at: tuple[str, ...]) -> None:
        if not isinstance(value, str):
            self.refuse(at, f"'{keyword}' must be a string")
        if keyword == "pattern":
            try:
                re.compile(value)
            except re.error:
                self.refuse(at, f"{value!r} is not a 'regex'")

    def check_strict(self, schema: dict[str, Any], at: tuple[str, ...]) -> None:
        for keyword in schema:
            if keyword not in STRICT_KEYWORDS:
                self.refuse(at, f"'{keyword}' is not permitted")
        if "$ref" in schema:
            if len(schema) > 1:
                extra = {keyword for keyword in schema if keyword != "$ref"}
                self.refuse(at, f"$ref cannot have keywords {extra}")
            return
        if "type" not in schema and "anyOf" not in schema:
            self.refuse(at, "schema must have a 'type' key")
        if "format" in schema and schema["format"] not in STRICT_FORMATS:
            self.refuse(at, f"'{schema['format']}' is not a valid format")
        if is_type(schema, "object"):
            if schema.get("additionalProperties") is not False:
                self.refuse(at, "'additionalProperties' is required to be supplied and to be false")
            properties, required = schema.get("properties", {}), schema.get("required", [])
            missing = [name for name in properties if name not in required]
            extra_names = [name for name in required if name not in properties]
            if missing or extra_names:
                problem = f"Missing '{missing[0]}'" if missing else f"Extra required key '{extra_names[0]}' supplied"
                rule = "'required' is required to be supplied and to be an array including every key in properties"
                self.refuse(at, f"{rule}. {problem}")

    def resolves(self, ref: str) -> bool:
        """Whether a reference points into this schema; references to other documents do not."""
        if ref == "#":
            return True
        if not ref.startswith("#/"):
            return False
        found: Any = self.root
        for part in ref[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                return False
            found = found[name]
        return isinstance(found, dict | bool)


def is_type(schema: dict[str, Any], name: str) -> bool:
    """Whether the schema accepts values of this type."""
    accepted = schema.get("type")
    return accepted == name or (isinstance(accepted, list) and name in accepted)


def are_types(value: object) -> bool:
    """Whether it is the name of a JSON type, or a non-empty list of such names."""
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def is_list_of_names(value: object) -> bool:
    """Whether it is a list of different strings."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)
