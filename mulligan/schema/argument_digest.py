"""The digest by which the arguments of calls are compared: of their normal form, which is JSON (normal_form.py)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from decimal import Decimal

from pydantic import JsonValue

DIGEST_CHARS = 24


def argument_digest(value: JsonValue) -> str:
    """A digest that is equal for equal JSON: the order of fields does not matter, and numbers count by their value."""
    return hashlib.sha256(normal_text(value).encode()).hexdigest()[:DIGEST_CHARS]


def digests_of(arguments: JsonValue, recorded: Sequence[str]) -> list[str]:
    """The digests of a call's arguments: of those that it is executed with, and last of the model's.

    Args:
        arguments: The arguments as they are recorded.
        recorded: The digests that are recorded beside them; none where a call has that of its arguments as JSON.
    """
    return list(recorded) or [argument_digest(arguments)]


def normal_text(value: JsonValue) -> str:
    """The JSON text that all spellings of a JSON value have in common."""
    return json.dumps(_by_value(value), sort_keys=True)


def _by_value(value: JsonValue) -> JsonValue:
    """`1.0`, `1e0` and `1` are one number, and `1e23` is the one with 23 zeros: not what a float makes of it."""
    if isinstance(value, dict):
        return {name: _by_value(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_by_value(each) for each in value]
    return int(Decimal(repr(value))) if isinstance(value, float) and value.is_integer() else value
