"""What a tool returned, as the text that the model reads: a text as it is, anything else as JSON."""

from __future__ import annotations

import dataclasses
import json
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

from mulligan.values import well_formed

MAX_BYTES = 1_400_000
"""A result's size in history: Temporal takes 2 MB for a payload, and a run must never die of one."""

_BY_PYDANTIC = (datetime, date, time, timedelta, Decimal, UUID, Url, AnyUrl, IPv4Address, IPv6Address)


class UnusableResult(Exception):
    """It cannot be written as JSON. The message says why."""


def render(value: object) -> str:
    """A result as text.

    Raises:
        UnusableResult: it is circular, holds NaN, bytes, or an object of which no JSON can be made.
    """
    if isinstance(value, str) and not isinstance(value, Enum):
        return str(well_formed(str(value)))
    try:
        return str(well_formed(json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)))
    except UnusableResult:
        raise
    except RecursionError:
        raise UnusableResult("it is nested too deeply") from None
    except TypeError:
        raise UnusableResult("a key in it is neither text nor a number") from None
    except Exception as error:  # noqa: BLE001 - a user's own serializer may raise anything
        # json's own words for the two.
        if str(error).startswith("Circular reference"):
            raise UnusableResult("it refers to itself") from None
        if str(error).startswith("Out of range float"):
            raise UnusableResult("it holds NaN or Infinity") from None
        raise UnusableResult(f"writing it raised {type(error).__name__}: {error}") from None


def _plain(value: object) -> Any:
    """What `json` does not know, in its terms."""
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
    raise UnusableResult(f"it holds an object of type {type(value).__name__}")


def cut(text: str, max_chars: int, max_bytes: int | None = None) -> str:
    """A text of at most `max_chars` characters, and of at most what Temporal can carry, with a note of what is left out."""
    most = max_bytes or MAX_BYTES
    # No character takes less than a byte: a text of megabytes need not be measured to know that.
    kept = text[: min(max_chars, most)]
    while len(json.dumps(kept, ensure_ascii=False).encode()) > most:
        kept = kept[: int(len(kept) * 0.9)]
    left_out = len(text) - len(kept)
    return text if not left_out else f"{kept}\n[… {left_out:,} more characters were left out]"
