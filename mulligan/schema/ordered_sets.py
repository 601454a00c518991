"""The order of sets in JSON. In Python theirs depends on the process: and equal arguments are recorded alike."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from pydantic import BaseModel, JsonValue, RootModel
from pydantic.fields import FieldInfo

from mulligan.schema.argument_digest import normal_text


def with_ordered_sets(value: Any, written: Any) -> Any:
    """The JSON of a value of Python's types, in which each set is sorted.

    Args:
        value: The value.
        written: The JSON that pydantic has written of it.
    """
    if not isinstance(written, (list, dict)):
        return written
    if isinstance(value, RootModel):
        return with_ordered_sets(value.root, written)
    if isinstance(written, list):
        return _ordered_list(value, written)
    fields = dict(zip(written, value.values(), strict=True)) if _is_aligned(value, written) else dict(_fields(value))
    return {name: with_ordered_sets(fields[name], each) if name in fields else each for name, each in written.items()}


def in_order(values: Iterable[JsonValue]) -> list[JsonValue]:
    """JSON values in the order of a set: numbers by value, texts by their characters."""
    return sorted(values, key=_rank)


def written_name(name: str, info: FieldInfo | None) -> str:
    """The name that a field has in JSON."""
    return (info.serialization_alias if info else None) or name


def _ordered_list(value: Any, written: list[Any]) -> list[Any]:
    if not isinstance(value, (list, tuple, deque, Set)):
        return written
    if len(value) == len(written):
        written = [with_ordered_sets(*each) for each in zip(value, written, strict=True)]
    return in_order(written) if isinstance(value, Set) else written


def _is_aligned(value: Any, written: dict[str, Any]) -> bool:
    return isinstance(value, Mapping) and len(value) == len(written)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a model or of a dataclass by their names in JSON."""
    if isinstance(value, BaseModel):
        for name, info in type(value).model_fields.items():
            yield written_name(name, info), value.__dict__.get(name)
        yield from (value.__pydantic_extra__ or {}).items()
    elif dataclasses.is_dataclass(value):
        infos = getattr(type(value), "__pydantic_fields__", {})
        for field in dataclasses.fields(value):
            yield written_name(field.name, infos.get(field.name)), getattr(value, field.name, None)


def _rank(value: JsonValue) -> tuple[int, Any]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return 1, value
    return (2, value) if isinstance(value, str) else (3, normal_text(value))
