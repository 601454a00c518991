"""A tool's result as text: what can be written is, what cannot is said, and no run dies of its size."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from activities.render_result import MAX_BYTES, UnusableResult, cut, render


class Size(Enum):
    SMALL = "s"


class Item(BaseModel):
    size: Size
    when: date


@dataclasses.dataclass
class Box:
    items: list[Item]


CIRCULAR: list[Any] = []
CIRCULAR.append(CIRCULAR)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (None, "null"),
        (True, "true"),
        ({"a": (1, 2.5)}, '{"a": [1, 2.5]}'),
        ("\ud800", "�"),
        (["é"], '["é"]'),
        (Size.SMALL, '"s"'),
        (Box([Item(size=Size.SMALL, when=date(2026, 1, 2))]), '{"items": [{"size": "s", "when": "2026-01-02"}]}'),
        ({3, 1}, "[1, 3]"),
        (Decimal("1.10"), '"1.10"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (PurePosixPath("a/b"), '"a/b"'),
        (timedelta(seconds=90), '"PT1M30S"'),
        (datetime(2026, 1, 2, tzinfo=UTC), '"2026-01-02T00:00:00Z"'),
        ({1: "a"}, '{"1": "a"}'),
    ],
)
def test_written(value: Any, text: str) -> None:
    assert render(value) == text


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (CIRCULAR, "refers to itself"),
        (DEEP, "nested too deeply"),
        (float("nan"), "NaN"),
        ({"a": [float("inf")]}, "Infinity"),
        (b"x", "type bytes"),
        (object(), "type object"),
        (ValueError("x"), "type ValueError"),
        ((n for n in range(3)), "type generator"),
        ({(1, 2): 3}, "a key in it"),
        (int, "type type"),
    ],
)
def test_cannot_be_written(value: Any, why: str) -> None:
    with pytest.raises(UnusableResult, match=why):
        render(value)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(text=st.text(), longest=st.integers(1, 50))
def test_cut_says_what_is_left_out(text: str, longest: int) -> None:
    shown = cut(text, longest)
    if len(text) <= longest:
        assert shown == text
    else:
        assert shown.startswith(text[:longest])
        assert f"[… {len(text) - longest:,} more characters were left out]" in shown


@pytest.mark.parametrize("char", ["a", "é", "\0", "𝄞", '"'])
def test_never_over_what_temporal_carries(char: str) -> None:
    """Counted as JSON, in which a NUL takes six bytes."""
    shown = cut(char * 3_000_000, 10_000_000)
    assert MAX_BYTES / 2 < len(json.dumps(shown, ensure_ascii=False).encode()) < MAX_BYTES + 200
