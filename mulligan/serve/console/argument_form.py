"""A JSON schema as a form for people, the form's values as JSON again, and what they changed.

Texts, numbers, choices and nested objects become fields; what a form cannot express (lists, unions) is a field of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mulligan.schema.subschemas import References
from mulligan.serve.problems import Problem

MOST_FIELDS, MOST_DEPTH = 200, 5
LONG_TEXT = 60
"""Characters from which a text gets more than one line."""
_MISSING: Any = object()


@dataclass
class FormField:
    """A field. `name`: in the form; `kind`: `text`, `lines`, `number`, `choice`, `json` or `group`. `value`: as text."""

    name: str
    label: str
    kind: str
    value: str = ""
    description: str = ""
    is_required: bool = False
    choices: list[str] = field(default_factory=list)
    fields: list[FormField] = field(default_factory=list)
    step: str = "any"
    minimum: Any = None
    maximum: Any = None


@dataclass(frozen=True)
class Change:
    """A value that a person has changed: `path` in the arguments; before and after as JSON texts, None: not there."""

    path: str
    before: str | None
    after: str | None


def fields_of(
    schema: Mapping[str, Any] | None, arguments: Any, values: Mapping[str, str] | None = None
) -> list[FormField]:
    """The fields of a form for `arguments`. `values`: what was entered before, which is shown again.

    Without a schema of an object, and for more than `MOST_FIELDS`, the form has one field of JSON, with the name `json`.
    Models and MCP servers write schemas: anything may be in one.
    """
    entered = values or {}
    if isinstance(arguments, dict) and isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        with suppress(_TooManyFields):
            return _Maker(schema, entered).fields(schema, arguments, "arg", 0)
    text = json.dumps(arguments, ensure_ascii=False, indent=2)
    return [FormField("json", "Arguments", "json", entered.get("json", text))]


def read_fields(fields: list[FormField], values: Mapping[str, str]) -> Any:
    """The arguments that a form contains.

    Raises:
        Problem: a field is not a number, or is not JSON.
    """
    if len(fields) == 1 and fields[0].name == "json":
        return _json(fields[0], values.get("json", fields[0].value))
    arguments: dict[str, Any] = {}
    for each in fields:
        value = read_fields(each.fields, values) if each.kind == "group" else _read(each, values)
        if value is not _MISSING and not (each.kind == "group" and not value and not each.is_required):
            arguments[each.label] = value
    return arguments


def changes_between(before: Any, after: Any, path: str = "") -> list[Change]:
    """What is different in two values, each with its path."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = list(dict.fromkeys([*before, *after]))
        return [
            change
            for name in names
            for change in changes_between(
                before.get(name, _MISSING), after.get(name, _MISSING), f"{path}.{name}" if path else name
            )
        ]
    if (
        before is _MISSING
        or after is _MISSING
        or before != after
        or isinstance(before, bool) != isinstance(after, bool)
    ):
        return [Change(path or "arguments", _shown(before), _shown(after))]
    return []


class _TooManyFields(Exception):
    pass


class _Maker:
    """Makes the fields of one schema. `entered`: what a person has entered before."""

    def __init__(self, root: dict[str, Any], entered: Mapping[str, str]) -> None:
        self._references, self._entered, self._made = References(root), entered, 0

    def fields(
        self, schema: Mapping[str, Any], arguments: Mapping[str, Any], prefix: str, depth: int
    ) -> list[FormField]:
        """The fields of an object. Arguments that the schema does not name have fields, too."""
        required = schema.get("required")
        required = required if isinstance(required, list) else []
        form_fields = []
        for number, (name, wanted) in enumerate(self._properties(schema, arguments)):
            self._made += 1
            if self._made > MOST_FIELDS:
                raise _TooManyFields
            value = arguments.get(name, _MISSING)
            form_fields.append(self._field(f"{prefix}.{number}", name, wanted, value, depth))
            form_fields[-1].is_required = name in required
        return form_fields

    def _properties(self, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        known = schema["properties"]
        for name in dict.fromkeys([*known, *arguments]):
            wanted = known.get(name)
            yield name, self._references.followed(wanted) if isinstance(wanted, dict) else {}

    def _field(self, form_name: str, label: str, schema: Mapping[str, Any], value: Any, depth: int) -> FormField:
        description = str(schema.get("description") or "")[:1_000]
        field = FormField(form_name, label, "json", description=description)
        if (
            isinstance(schema.get("properties"), dict)
            and depth < MOST_DEPTH
            and isinstance(value, (dict, type(_MISSING)))
        ):
            field.kind = "group"
            field.fields = self.fields(schema, value if isinstance(value, dict) else {}, form_name, depth + 1)
            return field
        kind, choices = schema.get("type"), schema.get("enum")
        is_text = value is _MISSING or isinstance(value, str)
        if (
            isinstance(choices, list)
            and 0 < len(choices) <= MOST_FIELDS
            and all(isinstance(each, str) for each in choices)
            and is_text
        ):
            field.kind, field.choices = "choice", choices
        elif kind == "boolean" and (value is _MISSING or isinstance(value, bool)):
            field.kind, field.choices = "choice", ["true", "false"]
        elif kind in ("integer", "number") and _is_number(value):
            field.kind, field.step = "number", "1" if kind == "integer" else "any"
            field.minimum, field.maximum = schema.get("minimum"), schema.get("maximum")
        elif kind == "string" and is_text:
            field.kind = "lines" if _is_long(value) else "text"
        field.value = self._entered.get(form_name, _value(field.kind, value))
        return field


def _is_number(value: Any) -> bool:
    return value is _MISSING or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and (len(value) > LONG_TEXT or "\n" in value)


def _value(kind: str, value: Any) -> str:
    if value is _MISSING:
        return ""
    if isinstance(value, str) and kind != "json":
        return value
    return json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, (dict, list)) else None)


def _read(each: FormField, values: Mapping[str, str]) -> Any:
    text = values.get(each.name, each.value)
    if each.kind in ("text", "lines"):
        # A browser sends line breaks as CR LF.
        text = text.replace("\r\n", "\n")
        return text if text or each.is_required or each.value else _MISSING
    if not text.strip():
        return _MISSING
    if each.kind == "choice":
        return (
            {"true": True, "false": False}[text] if each.choices == ["true", "false"] and text in each.choices else text
        )
    if each.kind == "number":
        try:
            return int(text) if text.strip().lstrip("-").isdecimal() else float(text)
        except ValueError:
            raise Problem(422, "invalid_input", f'"{each.label}" is {text[:80]!r}; it must be a number.') from None
    return _json(each, text)


def _json(each: FormField, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Problem(422, "invalid_input", f'"{each.label}" is not JSON: {str(error)[:200]}.') from None


def _shown(value: Any) -> str | None:
    if value is _MISSING:
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
