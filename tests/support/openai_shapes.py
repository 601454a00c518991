"""Checks a request against the openai package's own request types: the fields, their types, nulls, fixed values.

The package's TypedDicts are generated from OpenAI's specification, so they know the fields of the service better than a
table of our own. A field that they do not have is refused as the service refuses it.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Union

import typing_extensions as te

JSON_TYPES: dict[Any, tuple[str, tuple[type, ...]]] = {
    str: ("a string", (str,)),
    bool: ("a boolean", (bool,)),
    int: ("an integer", (int,)),
    float: ("a decimal", (int, float)),
    type(None): ("null", (type(None),)),
}


class Refusal(Exception):
    """A request that OpenAI would reject, with the error that it would return."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status

    def body(self) -> dict[str, Any]:
        """OpenAI's error JSON."""
        error = {"message": self.message, "type": "invalid_request_error", "param": self.param, "code": self.code}
        return {"error": error}

    def __repr__(self) -> str:
        return f"Refusal({self.status}, {self.message!r}, param={self.param!r}, code={self.code!r})"


def check_shape(value: object, hint: Any, param: str = "") -> None:
    """Refuse `value` unless the type `hint` describes it."""
    hint = bare(hint)
    if hint is Any or hint is object:
        return
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if te.is_typeddict(hint):
        check_object(value, hint, param)
    elif origin is Literal:
        check_literal(value, args, param)
    elif origin is Union or origin is types.UnionType:
        check_union(value, args, param)
    elif hint in JSON_TYPES:
        expected, accepted = JSON_TYPES[hint]
        if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
            raise wrong_type(value, expected, param)
    elif origin in (dict, Mapping):
        check_map(value, args[1], param)
    elif origin in (list, Iterable, Sequence):
        check_array(value, args[0], param)
    else:  # a kind of type that the package has not used so far: say so instead of accepting everything
        raise NotImplementedError(f"check_shape does not know {hint!r} at {param}")


def check_map(value: object, item_hint: Any, param: str) -> None:
    """Refuse a value that is not an object whose values all have the type `item_hint`."""
    if not isinstance(value, dict):
        raise wrong_type(value, "an object", param)
    for key, item in value.items():
        check_shape(item, item_hint, f"{param}.{key}")


def check_array(value: object, item_hint: Any, param: str) -> None:
    """Refuse a value that is not an array whose items all have the type `item_hint`."""
    if not isinstance(value, list):
        raise wrong_type(value, "an array", param)
    for index, item in enumerate(value):
        check_shape(item, item_hint, f"{param}[{index}]")


def check_object(value: object, hint: Any, param: str) -> None:
    """Refuse a value that is not an object with the fields of the TypedDict `hint`: all required ones and no other."""
    if not isinstance(value, dict):
        raise wrong_type(value, "an object", param)
    known, prefix = fields(hint), f"{param}." if param else ""
    for name in value:
        if name not in known:
            raise Refusal(f"Unknown parameter: '{prefix}{name}'.", f"{prefix}{name}", "unknown_parameter")
    for name, field in known.items():
        if name in value:
            check_shape(value[name], field, f"{prefix}{name}")
        elif typing.get_origin(field) is te.Required:
            raise missing(f"{prefix}{name}")


def check_literal(value: object, allowed: Sequence[object], param: str) -> None:
    """Refuse a value that is not one of the fixed values."""
    if not any(type(value) is type(one) and value == one for one in allowed):
        if not isinstance(value, str):
            raise wrong_type(value, "one of " + listed(allowed), param)
        raise Refusal(f"Invalid value: '{value}'. Supported values are: {listed(allowed)}.", param, "invalid_value")


def check_union(value: object, options: Sequence[Any], param: str) -> None:
    """Refuse a value that fits none of the options, with the reason of the option that fits best."""
    if object in options:
        return None
    if isinstance(value, dict):
        candidates = [option for option in options if is_object(option) and tags_fit(value, option)]
        if not candidates and any(is_object(option) for option in options):
            raise unknown_tag(value, options, param)
    else:
        candidates = [option for option in options if not is_object(option) and may_be(value, option)]
    if not candidates:
        raise wrong_type(value, "one of " + ", ".join(sorted({expected_name(option) for option in options})), param)
    refusals: list[Refusal] = []
    for option in candidates:
        try:
            return check_shape(value, option, param)
        except Refusal as refusal:
            refusals.append(refusal)
    # the option whose check got deepest is the one that the sender meant
    raise max(refusals, key=lambda refusal: len(refusal.param or ""))


def tags_fit(value: dict[str, Any], option: Any) -> bool:
    """Whether the object has the `type` and the `role` that identify this option."""
    for tag, allowed, required in tags_of(option):
        if tag not in value:
            if required:
                return False
        elif value[tag] not in allowed:
            return False
    return True


@functools.cache
def tags_of(option: Any) -> list[tuple[str, tuple[object, ...], bool]]:
    """The fields with a fixed value that identify an option, each with its allowed values and whether it is required."""
    known = fields(option) if te.is_typeddict(option) else {}
    hints = {tag: known[tag] for tag in ("type", "role") if tag in known}
    return [
        (tag, typing.get_args(bare(hint)), typing.get_origin(hint) is te.Required)
        for tag, hint in hints.items()
        if typing.get_origin(bare(hint)) is Literal
    ]


def unknown_tag(value: dict[str, Any], options: Sequence[Any], param: str) -> Refusal:
    """The refusal of an object whose `type` or `role` belongs to none of the options."""
    for tag in ("type", "role"):
        hints = [bare(fields(option)[tag]) for option in options if te.is_typeddict(option) and tag in fields(option)]
        allowed = sorted({text for hint in hints for text in typing.get_args(hint) if isinstance(text, str)})
        if allowed and tag in value and value[tag] not in allowed:
            message = f"Invalid value: '{value[tag]}'. Supported values are: {listed(allowed)}."
            return Refusal(message, f"{param}.{tag}", "invalid_value")
    for tag in ("role", "type"):
        if tag not in value and any(te.is_typeddict(option) and tag in fields(option) for option in options):
            return missing(f"{param}.{tag}")
    return Refusal(f"Invalid value at '{param}': its type and role do not go together.", param, "invalid_value")


@functools.cache
def fields(hint: Any) -> dict[str, Any]:
    """The fields of a TypedDict and of its bases, each with its `Required` mark."""
    return te.get_type_hints(hint, include_extras=True)


@functools.cache
def bare(hint: Any) -> Any:
    """The type without the marks around it."""
    while typing.get_origin(hint) in (te.Required, te.NotRequired, te.Annotated):
        hint = typing.get_args(hint)[0]
    return hint


@functools.cache
def is_object(hint: Any) -> bool:
    """Whether the type is that of a JSON object."""
    return te.is_typeddict(bare(hint)) or typing.get_origin(bare(hint)) in (dict, Mapping)


def may_be(value: object, hint: Any) -> bool:
    """Whether a value other than an object has the JSON type of this option."""
    return json_type(value) == expected_name(hint) or (json_type(value) == "an integer" and bare(hint) is float)


def expected_name(hint: Any) -> str:
    """How OpenAI calls a type."""
    hint = bare(hint)
    if hint in JSON_TYPES:
        return JSON_TYPES[hint][0]
    if typing.get_origin(hint) is Literal:
        return json_type(typing.get_args(hint)[0])
    return "an object" if is_object(hint) else "an array"


def json_type(value: object) -> str:
    """How OpenAI calls the type of a value."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    return JSON_TYPES[type(value)][0]


def missing(param: str) -> Refusal:
    """The refusal of a request without a required field."""
    return Refusal(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def wrong_type(value: object, expected: str, param: str) -> Refusal:
    """The refusal of a value of another type."""
    message = f"Invalid type for '{param}': expected {expected}, but got {json_type(value)} instead."
    return Refusal(message, param, "invalid_type")


def listed(values: Sequence[object]) -> str:
    """The values in quotes, for an error message."""
    return ", ".join(f"'{value}'" for value in values)
