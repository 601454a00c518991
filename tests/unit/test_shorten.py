"""Shortened values keep their type and their bound, and say that something was left out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.wire.shorten import json_size, shorten

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3_000),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=50), inner, max_size=20),
    max_leaves=60,
)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"a": "x" * 5_000, "b": 1}, {"a": "x" * 200 + "… (4800 more characters)", "b": 1}),
        ({"a": [{"b": "é" * 5_000}]}, {"a": [{"b": "é" * 200 + "… (4800 more characters)"}]}),
        ("x" * 5_000, "x" * 166 + "… (4834 more characters)"),
        ({"a": "short"}, {"a": "short"}),
        (None, None),
    ],
)
def test_long_texts_are_shortened_first(value: Any, kept: Any) -> None:
    assert shorten(value, 1_000) == kept


def test_then_fields_and_items_are_left_out_and_counted() -> None:
    fields = shorten({f"k{n}": n for n in range(1_000)}, 500)
    assert (fields["k0"], fields["…"]) == (0, f"{1_000 - len(fields) + 1} more fields")
    items = shorten(list(range(1_000)), 500)
    assert (items[0], items[-1]) == (0, f"… {1_000 - len(items) + 1} more items")


@settings(derandomize=True, deadline=None, max_examples=300)
@given(JSON)
def test_a_shortened_value_keeps_its_type_and_its_bound(value: Any) -> None:
    made = shorten(value, 600)
    assert type(made) is type(value)
    assert json_size(made) <= 700
    assert shorten(value, json_size(value)) == value
