"""Less memory for the models that an open run keeps: their sets of given fields are shared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

_OF_TYPE: dict[type[BaseModel], set[str]] = {}


class Slotted:
    """The base of a dataclass with slots whose fields have models in them. Only the slots of its own class are read."""

    __slots__: tuple[str, ...] = ()


def share_field_sets(stored: Any) -> None:
    """Let a model, and the models in its fields and lists, use one set per type as its set of given fields. The models in
    the fields of a `Slotted` object do so too.

    Pydantic keeps a set for each instance, of 216 or 728 bytes: more than the fields of most messages. Here it has no use:
    JSON leaves out fields by their value (optional_field.py), not because they were not given. The shared set has all
    fields of the type, so that an assignment, which adds the name of its field, does not change it.
    """
    if isinstance(stored, BaseModel):
        kind = type(stored)
        shared = _OF_TYPE.get(kind)
        if shared is None:
            shared = _OF_TYPE[kind] = set(kind.model_fields)
        object.__setattr__(stored, "__pydantic_fields_set__", shared)
        values: Iterable[Any] = stored.__dict__.values()
    elif isinstance(stored, Slotted):
        values = [getattr(stored, name) for name in stored.__slots__]
    else:
        values = stored if isinstance(stored, list) else ()
    for value in values:
        # Most values are none of these. A call for each would be a large part of what a step costs.
        if isinstance(value, BaseModel | list | Slotted):
            share_field_sets(value)


def has_shared_field_set(model: BaseModel) -> bool:
    """Whether `share_field_sets` was called with it."""
    return model.model_fields_set is _OF_TYPE.get(type(model))
