"""Tool results as text: their rendering, errors for those without one, and limits of their size."""

from __future__ import annotations

import dataclasses
import json
from array import array
from collections import deque
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, RootModel, field_serializer

from mulligan.activities.tool_running.render_result import MAX_BYTES, UnusableResult, cut, render
from tests.support.examples import examples


class Size(Enum):
    SMALL = "s"


class Item(BaseModel):
    size: Size
    when: date


@dataclasses.dataclass
class Box:
    items: list[Item]


@dataclasses.dataclass
class Report:
    per_key: Any


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
        (Decimal("1.10"), "1.1"),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (PurePosixPath("a/b"), '"a/b"'),
        (timedelta(seconds=90), '"PT1M30S"'),
        (datetime(2026, 1, 2, tzinfo=UTC), '"2026-01-02T00:00:00Z"'),
        ({1: "a"}, '{"1": "a"}'),
    ],
)
def test_results_are_rendered_as_text_or_json(value: Any, text: str) -> None:
    assert render(value) == text


_KEYS = st.one_of(
    st.dates(), st.datetimes(), st.uuids(), st.decimals(allow_nan=False, allow_infinity=False), st.sampled_from(Size),
    st.fractions(), st.timedeltas(), st.ip_addresses(v=4), st.text(max_size=3), st.integers(), st.booleans(), st.none(),
)  # fmt: skip


@given(
    key=_KEYS, wrap=st.sampled_from([lambda each: each, lambda each: [each], lambda each: {"in": (each, 1)}, Report])
)
@settings(max_examples=examples(200))
def test_a_key_is_written_as_its_value_is(key: Any, wrap: Any) -> None:
    """At any depth, and in objects that become a dict only as they are written."""
    inner = json.loads(render(wrap({key: 1})))
    while not isinstance(inner, dict) or inner.keys() & {"in", "per_key"}:
        inner = inner[0] if isinstance(inner, list) else next(iter(inner.values()))
    written = json.loads(render([key]))[0]
    assert [*inner] == [*json.loads(json.dumps({written: 1}))]
    assert [*inner.values()] == [1]


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
        ({(1, 2): 3}, "a key in it is of type tuple"),
        ({"a": [{b"x": 3}]}, "a key in it is of type bytes"),
        ({date(2026, 11, 28): 1, "2026-11-28": 2}, "two keys in it are the same as text"),
        ({Decimal("NaN"): 1}, "a key in it is of type Decimal"),
        (int, "type type"),
    ],
)
def test_a_result_that_cannot_be_rendered_raises_with_the_reason(value: Any, why: str) -> None:
    with pytest.raises(UnusableResult, match=why):
        render(value)


@settings(derandomize=True, deadline=None, max_examples=examples(100))
@given(text=st.text(), longest=st.integers(1, 50))
def test_a_cut_text_says_how_many_characters_were_left_out(text: str, longest: int) -> None:
    shown = cut(text, longest)
    if len(text) <= longest:
        assert shown == text
    else:
        assert shown.startswith(text[:longest])
        assert f"[… {len(text) - longest:,} more characters were left out]" in shown


@pytest.mark.parametrize("char", ["a", "é", "\0", "𝄞", '"'])
def test_a_cut_text_fits_in_a_temporal_payload(char: str) -> None:
    """Measured as JSON, in which a NUL takes six bytes."""
    shown = cut(char * 3_000_000, 10_000_000)
    assert MAX_BYTES / 2 < len(json.dumps(shown, ensure_ascii=False).encode()) < MAX_BYTES + 200


FINE = mpmath.mp.clone()
FINE.dps = 40


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.int64(5), "5"),
        (np.uint64(2**64 - 1), "18446744073709551615"),
        (np.float32(0.5), "0.5"),
        (np.float64(0.1), "0.1"),
        (np.longdouble(1.5), "1.5"),
        (np.bool_(True), "true"),
        (np.datetime64("2026-01-02"), '"2026-01-02"'),
        (np.arange(3), "[0, 1, 2]"),
        (np.array(5.5), "5.5"),
        (np.array([1, 2], dtype=np.longdouble), "[1.0, 2.0]"),
        ({"a": [np.eye(2), np.int8(1)]}, '{"a": [[[1.0, 0.0], [0.0, 1.0]], 1]}'),
        (array("i", [1, 2]), "[1, 2]"),
        (mpmath.mpf("1.5"), "1.5"),
        (FINE.mpf(1) / 3, "0.3333333333333333"),
        (mpmath.mpf("1e1000"), '"1.0e+1000"'),
        (mpmath.matrix([[1, 2]]), "[[1.0, 2.0]]"),
        (Decimal("0.1"), "0.1"),
        (Decimal("-12345678901234567890"), "-12345678901234567890"),
        (Decimal("1E+5"), "100000"),
        (Decimal("123456789012345678.91"), '"123456789012345678.91"'),
        (Decimal("1e1000000"), '"1E+1000000"'),
        (Decimal("1e-400"), '"1E-400"'),
    ],
)
def test_numbers_of_other_libraries_are_numbers(value: Any, text: str) -> None:
    """A number for which no float is the same is a text."""
    assert render(value) == text


class Mocked:
    def __getattr__(self, name: str) -> Any:
        return lambda: [1]


class Raises:
    def tolist(self) -> Any:
        raise TypeError("no list")


class Itself:
    def tolist(self) -> Any:
        return self


class Endless:
    def tolist(self) -> Any:
        return [Endless()]


class NoFloat:
    def __float__(self) -> Any:
        return "5"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (np.array([1, np.nan]), "NaN or Infinity"),
        (np.float32("inf"), "NaN or Infinity"),
        (mpmath.mpf("-inf"), "NaN or Infinity"),
        (mpmath.mpf("nan"), "NaN or Infinity"),
        (Decimal("NaN"), "NaN or Infinity"),
        (Decimal("sNaN"), "NaN or Infinity"),
        (Decimal("-Infinity"), "NaN or Infinity"),
        (np.complex128(1j), "type complex128"),
        (mpmath.mpc(1, 2), "type mpc"),
        (np.array([b"x"]), "type bytes"),
        (np.array([object()], dtype=object), "type object"),
        (np.broadcast_to(np.int8(1), (1_000_000_000_000,)), "an array of 1,000,000,000,000 values"),
        (bytearray(b"5"), "type bytearray"),
        (b"5", "type bytes"),
        (Mocked(), "type Mocked"),
        (Raises(), "type Raises"),
        (Itself(), "refers to itself"),
        (Endless(), "nested too deeply"),
        (NoFloat(), "type NoFloat"),
    ],
)
def test_what_is_no_finite_number_is_refused_with_the_reason(value: Any, why: str) -> None:
    with pytest.raises(UnusableResult, match=why):
        render(value)


@settings(derandomize=True, deadline=None, max_examples=examples(150))
@given(
    st.decimals(allow_nan=False, allow_infinity=False) | st.decimals(places=2, allow_nan=False, allow_infinity=False)
)
def test_no_digit_of_a_decimal_is_changed(value: Decimal) -> None:
    written = json.loads(render(value), parse_float=Decimal)
    assert Decimal(written) == value


class Number(IntEnum):
    ONE = 1


class Row(NamedTuple):
    name: str
    size: int


class Rows(RootModel[list[Row]]):
    """A model that is a list."""


class Aliased(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)

    name: str = Field(alias="fullName")


class Sad(BaseModel):
    x: int = 0

    @field_serializer("x")
    def fail(self, value: int) -> int:
        raise RuntimeError("out of order")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Number.ONE, "1"),
        ([Row("a", 1)], '[["a", 1]]'),
        (Rows([Row("a", 1)]), '[["a", 1]]'),
        (Aliased(fullName="Ann"), '{"fullName": "Ann"}'),
        ({Number.ONE: 1, None: 2, False: 3, 1.5: 4}, '{"1": 1, "null": 2, "false": 3, "1.5": 4}'),
        (frozenset({"b", "a"}), '["a", "b"]'),
        (deque([1, 2], maxlen=2), "[1, 2]"),
        (MappingProxyType({"a": 1}), '{"a": 1}'),
        (Fraction(1, 3), '"1/3"'),
        ([time(1, 2), IPv4Address("127.0.0.1")], '["01:02:00", "127.0.0.1"]'),
        ("\0", "\0"),
        (["\0\ud800"], '["\\u0000\ufffd"]'),
    ],
)
def test_more_types_of_results_are_rendered(value: Any, text: str) -> None:
    assert render(value) == text


def test_a_url_in_a_result_is_rendered() -> None:
    assert render({"at": AnyUrl("http://x/y")}) == '{"at": "http://x/y"}'


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Sad(), "writing it raised PydanticSerializationError: .*out of order"),
        (10**5_000, "writing it raised ValueError: Exceeds the limit"),
        ({float("nan"): 1}, "NaN"),
        (1j, "type complex"),
        (lambda: 1, "type function"),
        ({"a": {"b": memoryview(b"x")}}, "type memoryview"),
    ],
    ids=["serializer", "digits", "NaN as a key", "complex", "function", "memory"],
)
def test_more_types_of_unusable_results_raise_with_the_reason(value: Any, why: str) -> None:
    with pytest.raises(UnusableResult, match=why):
        render(value)


@settings(derandomize=True, deadline=None, max_examples=examples(100))
@given(
    text=st.text(alphabet=st.sampled_from('a\0"é𝄞\n'), max_size=200), chars=st.integers(1, 60), limit=st.integers(2, 60)
)
def test_a_cut_text_keeps_both_the_character_and_the_byte_limit(text: str, chars: int, limit: int) -> None:
    """The note states how much was left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mulligan.activities.tool_running.render_result.MAX_BYTES", limit)
        shown = cut(text, chars)
    kept, note, count = shown.partition("\n[… ")
    if not note:
        kept, left_out = shown, 0
    else:
        left_out = int(count.split()[0].replace(",", ""))
    assert text.startswith(kept)
    assert (len(kept) <= chars, len(kept) + left_out) == (True, len(text))
    assert len(json.dumps(kept, ensure_ascii=False).encode()) <= limit
