"""Less memory for the models that an open run keeps: their sets of given fields are shared."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

_OF_TYPE: dict[type[BaseModel], set[str]] = {}


def share_field_sets(stored: Any) -> None:
    """Let a model, and the models in its fields and lists, use one set per type as its set of given fields.

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
        for value in stored.__dict__.values():
            if isinstance(value, BaseModel | list):  # most are neither, and a call for each would be what a step costs
                share_field_sets(value)
    elif isinstance(stored, list):
        for value in stored:
            share_field_sets(value)


def has_shared_field_set(model: BaseModel) -> bool:
    """Whether `share_field_sets` was called with it."""
    return model.model_fields_set is _OF_TYPE.get(type(model))
