"""How much memory values take, so that a bound in bytes is one."""

from __future__ import annotations

import sys
from typing import Any

from pydantic import BaseModel

_PER_KEY = 12
"""Bytes of a dict's key, on the average: most are there once for all."""


def memory_size(*values: Any) -> int:
    """Bytes that messages, or a provider's items, take in memory; what they share is counted once.

    Of dicts' keys little is counted: JSON's and pydantic's readers keep most short ones once for the whole process.
    """
    seen: set[int] = set()
    left: list[Any] = list(values)
    size = 0
    while left:
        value = left.pop()
        if value is None or isinstance(value, bool) or id(value) in seen:
            continue
        seen.add(id(value))
        size += sys.getsizeof(value)
        if isinstance(value, BaseModel):
            size += sys.getsizeof(value.model_fields_set)
            left.append(value.__dict__)
        elif isinstance(value, dict):
            size += _PER_KEY * len(value)
            left += value.values()
        elif isinstance(value, (list, tuple)):
            left += value
    return size
