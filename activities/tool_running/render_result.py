"""Render a tool's result as the text that the model reads: text unchanged, anything else as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
from collections import deque
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Address
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic import AnyUrl, BaseModel
from pydantic_core import Url, to_jsonable_python

from mulligan.schema.error_text import error_text, type_name
from mulligan.schema.well_formed import well_formed

MAX_BYTES = 1_400_000
"""Bytes of a result in history. Temporal's limit for a payload is 2 MB, and a larger one would fail the run."""

MAX_ARRAY = 1_000_000
"""Values of an array, each of which takes two bytes at least; as a list it takes many times its own memory."""
MAX_DIGITS = 300
"""Of an integer that is a Decimal, which may have millions; a float has 308."""

_BY_PYDANTIC = (datetime, date, time, timedelta, UUID, Url, AnyUrl, IPv4Address, IPv6Address)


class UnusableResult(Exception):
    """The result cannot be written as JSON. The message says why."""


def render(value: object) -> str:
    """A result as text.

    Raises:
        UnusableResult: it is circular, or contains NaN, bytes, or an object that has no JSON form.
    """
    if isinstance(value, str) and not isinstance(value, Enum):
        return str(well_formed(str(value)))
    try:
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
        except TypeError:  # the json module's, for a key: it gives keys to no function of ours
            text = json.dumps(
                _with_text_keys(value), ensure_ascii=False, allow_nan=False, default=_plain_with_text_keys
            )
        return str(well_formed(text))
    except UnusableResult:
        raise
    except RecursionError:
        raise UnusableResult("it is nested too deeply") from None
    except Exception as error:  # noqa: BLE001 - a user's own serializer may raise anything
        # The texts of the json module for these two errors: both are a ValueError, which has no code.
        if error_text(error).startswith("Circular reference"):
            raise UnusableResult("it refers to itself") from None
        if error_text(error).startswith("Out of range float"):
            raise UnusableResult("it contains NaN or Infinity") from None
        raise UnusableResult(f"writing it raised {type_name(error)}: {error_text(error)}") from None


def _with_text_keys(value: object) -> Any:
    """The value, with texts as keys at each depth."""
    if isinstance(value, Mapping):
        keys = [each if each is None or isinstance(each, str | bool | int | float) else _key(each) for each in value]
        if len({*keys}) < len(keys):
            raise UnusableResult("two keys in it are the same as text")
        return dict(zip(keys, map(_with_text_keys, value.values()), strict=True))
    return [*map(_with_text_keys, value)] if isinstance(value, list | tuple) else value


def _plain_with_text_keys(value: object) -> Any:
    return _with_text_keys(_plain(value))


def _key(key: object) -> str:
    """A key as text: that of its value in JSON."""
    try:
        plain = _plain(key)
    except UnusableResult:
        plain = None
    if isinstance(plain, str | int | float) and not (isinstance(plain, float) and not math.isfinite(plain)):
        return str(plain)
    raise UnusableResult(f"a key in it is of type {type_name(key)}, which JSON has no text for")


def _plain(value: object) -> Any:
    """Convert a value that the json module does not support."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, warnings=False)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, deque):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (Fraction, PurePath)):
        return str(value)
    if isinstance(value, _BY_PYDANTIC):
        return to_jsonable_python(value)
    try:
        return _number_or_list(value)
    except (UnusableResult, RecursionError, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - methods of any library or user
        raise UnusableResult(f"it contains an object of type {type_name(value)}") from None


def _number_or_list(value: Any) -> Any:
    """A number of another library as Python's, and an array as a list. numpy and mpmath are not imported for it.

    Raises:
        Exception: it is neither.
    """
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Rational):
        return str(value)  # a fraction, such as sympy's; Fraction itself is written so too
    # The class is looked at, as an object with a `__getattr__` may seem to have any method.
    if hasattr(type(value), "tolist") and not isinstance(value, memoryview | numbers.Number):
        if (size := getattr(value, "size", 0)) and isinstance(size, int) and size > MAX_ARRAY:
            raise UnusableResult(f"it contains an array of {size:,} values; the limit is {MAX_ARRAY:,}")
        return value.tolist()
    is_complex = isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real)
    if is_complex or not hasattr(type(value), "__float__"):  # `float` also reads texts and bytes
        raise TypeError
    number = float(value)
    # mpmath has numbers that are too large for a float: these are written as texts.
    return str(value) if math.isinf(number) and "inf" not in str(value) else number


def _decimal(value: Decimal) -> int | float | str:
    """A Decimal as the number that equals it; as text where no float does, so that no digit is changed."""
    if not value.is_finite():
        return float("nan")  # `render` says that JSON has no such number
    if value == value.to_integral_value() and value.adjusted() < MAX_DIGITS:
        return int(value)
    number = float(value)
    return number if Decimal(repr(number)) == value else str(value)


def cut(text: str, max_chars: int, max_bytes: int | None = None) -> str:
    """The well-formed text, cut to `max_chars` characters and to `max_bytes` as JSON, with a note of what is left out."""
    text = str(well_formed(text))
    most = max_bytes or MAX_BYTES
    # Each character needs a byte at least: this avoids measuring a text of megabytes.
    start = text[: min(max_chars, most)]
    while len(json.dumps(start, ensure_ascii=False).encode()) > most:
        start = start[: int(len(start) * 0.9)]
    left_out = len(text) - len(start)
    return text if not left_out else f"{start}\n[… {left_out:,} more characters were left out]"
