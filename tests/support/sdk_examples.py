"""Examples of the values that an SDK's types describe, with every field set: what a provider may return."""

from __future__ import annotations

import datetime
import enum
import types
import typing
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel

DEEPEST = 8
"""Models inside models: some types contain themselves."""


def members(hint: Any) -> list[Any]:
    """The types of a union, of unions in it too."""
    if typing.get_origin(hint) is Annotated:
        return members(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (Union, types.UnionType):
        return [each for arg in typing.get_args(hint) for each in members(arg)]
    return [hint]


def example(hint: Any, name: str = "value", depth: int = 0) -> Any:
    """A JSON value of a type; texts are made of the names of their fields, so that they differ."""
    options = [each for each in members(hint) if each is not type(None)]
    hint = options[0]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return args[0]
    if origin in (list, typing.List):  # noqa: UP006 - what the packages' annotations have
        return [example(args[0], name, depth)] if depth < DEEPEST else []
    if origin in (dict, typing.Dict):  # noqa: UP006
        return {"a": example(args[1], name, depth)}
    if isinstance(hint, type):
        return _of_class(hint, name, depth)
    return {"any": [1, "two"]}


def _of_class(hint: type, name: str, depth: int) -> Any:
    if issubclass(hint, BaseModel):
        fields = {
            field.alias or each: example(field.annotation, f"{name}_{each}", depth + 1)
            for each, field in hint.model_fields.items()
            if depth < DEEPEST or field.is_required()
        }
        return {each: value for each, value in fields.items() if value is not None}
    if issubclass(hint, enum.Enum):
        return list(hint)[-1].value
    if hint in (datetime.datetime, datetime.date):
        return "2026-11-26T00:00:00Z"
    return {str: name, bytes: "Ynl0ZXM=", bool: True, int: 1, float: 0.5}.get(hint, {"any": [1, "two"]})
