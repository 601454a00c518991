"""Small decisions below all: what values look like in their normal form, in Python's types, as media, and to a person."""

from __future__ import annotations

from collections import deque, namedtuple
from dataclasses import field as dataclass_field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, SecretStr, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from mulligan.schema.cut_text import beginning, cut_text
from mulligan.schema.fault_text import required_form
from mulligan.schema.json_limits import JsonMeter, is_deeper
from mulligan.schema.media_types import conflict, is_text, sniffed, type_of_name
from mulligan.schema.normal_form import MARK, normal_form
from mulligan.schema.open_file import open_file, read_bytes, state_of
from mulligan.schema.ordered_sets import in_order, with_ordered_sets
from mulligan.schema.python_stubs import FunctionSchema, stubs_of


class Colour(Enum):
    RED = "red"
    ONE = 1


class Renamed(BaseModel):
    size: int = Field(serialization_alias="Size", default=1)
    tags: set[str] = set()


class Rooted(RootModel[list[int]]):
    pass


@dataclass
class Parcel:
    weight: int = 1
    inside: list[int] = dataclass_field(default_factory=list)


Pair = namedtuple("Pair", ["a", "b"])
BERLIN = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (True, True),
        (None, None),
        ("a", "a"),
        (1.5, 1.5),
        (float("inf"), {MARK: "inf"}),
        (Colour.RED, "red"),
        (Colour.ONE, 1),
        (Decimal("0.0"), 0),
        (Decimal("10.0"), 10),
        (Decimal("1E+2"), 100),
        (Decimal("0.5"), 0.5),
        (Decimal("-0.1000000000000000055511151231257827"), {MARK: "-1000000000000000055511151231257827e-34"}),
        (Decimal("1E+400"), {MARK: "1e400"}),
        (Decimal("Infinity"), {MARK: "Infinity"}),
        (Decimal("NaN"), {MARK: "NaN"}),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, 3), "2026-01-02T03:00:00"),  # noqa: DTZ001 - without a zone
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00Z"),
        (datetime(2026, 1, 2, 3, tzinfo=BERLIN), "2026-01-02T01:00:00Z"),
        (time(3, 4, 5), "03:04:05"),
        (time(3, 0, 0, 7, tzinfo=UTC), {f"{MARK}time": 3 * 3_600_000_000 + 7}),
        (time(3, 1, 2, tzinfo=BERLIN), {f"{MARK}time": 3_662_000_000}),
        (timedelta(days=1, microseconds=2), {f"{MARK}duration": 86_400_000_002}),
        (b"ab", "ab"),
        (bytearray(b"\xff\x00"), {f"{MARK}bytes": "ff00"}),
        ({3, 1, 2}, [1, 2, 3]),
        ({"b", "a", 2}, [2, "a", "b"]),
        ((1, Decimal("2.0")), [1, 2]),
        (deque([1]), [1]),
        ({1: "a", "b": 2}, {"1": "a", "b": 2}),
        ({Colour.RED: 1}, {"red": 1}),
        ({(1, 2): 1}, {f"{MARK}[1, 2]": 1}),
        ({True: 1}, {f"{MARK}true": 1}),
        ({f"{MARK}x": 1}, {f"{MARK}{MARK}x": 1}),
        (Rooted([1]), [1]),
        (SecretStr("s"), "s"),
        (UUID("12345678123456781234567812345678"), "12345678-1234-5678-1234-567812345678"),
        (Path("/a/b"), "/a/b"),
        (Renamed(), {}),
        (Renamed(size=1), {}),
        (Renamed(size=2, tags={"b", "a"}), {"Size": 2, "tags": ["a", "b"]}),
        (Parcel(), {}),
        (Parcel(weight=2, inside=[1]), {"weight": 2, "inside": [1]}),
        (Pair(1, 2), [1, 2]),
        ([Pair(1, 2)], [{f"{MARK}Pair": [1, 2]}]),
    ],
)
def test_the_normal_form_of_a_value(value: Any, form: Any) -> None:
    """The types of its parts are not declared here, so that a part may be another one's."""
    found = normal_form(value, "not known", None)
    assert found == form
    assert type(found) is type(form)


class Odd:
    """A type that nobody knows."""


def test_a_part_of_an_unknown_type_is_as_it_is_recorded() -> None:
    assert normal_form({"a": Odd(), "b": Decimal("1.0")}, {"a": "odd", "b": "1.0"}, None) == {"a": "odd", "b": 1}
    assert normal_form([Odd(), 1], ["odd", 1], None) == ["odd", 1]
    assert normal_form([Odd(), 1], ["odd"], None) == ["odd"]  # another length says nothing of a part
    assert normal_form(iter([1]), [1], None) == [1]


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    names: set[str] = Field(alias="Names", serialization_alias="Written")


@pytest.mark.parametrize(
    ("value", "written", "ordered"),
    [
        ({"b", "a"}, ["b", "a"], ["a", "b"]),
        ([{"b", "a"}, 1], [["b", "a"], 1], [["a", "b"], 1]),
        ({"k": {10, 9}}, {"k": [10, 9]}, {"k": [9, 10]}),
        (Extra(Names={"b", "a"}, more={2, 1}), {"Written": ["b", "a"], "more": [2, 1]},
         {"Written": ["a", "b"], "more": [1, 2]}),
        (["b", "a"], ["b", "a"], ["b", "a"]),
        ("text", "text", "text"),
        (Odd(), ["b", "a"], ["b", "a"]),
        ({"b", "a"}, ["joined"], ["joined"]),
    ],
)  # fmt: skip
def test_only_sets_are_written_in_an_order_of_their_own(value: Any, written: Any, ordered: Any) -> None:
    assert with_ordered_sets(value, written) == ordered


def test_the_order_of_a_set_is_by_kind_then_by_value() -> None:
    assert in_order(["b", 10, 9.5, None, "a", True]) == [9.5, 10, "a", "b", None, True]


@pytest.mark.parametrize(
    ("head", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n123", "image/png"),
        (b"RIFF\n\n\n\nWEBP", "image/webp"),
        (b"RIFF1234WAVE", "audio/wav"),
        (b"1234ftypheic", "image/heic"),
        (b"1234ftypisom", "video/mp4"),
        (b"PK\x03\x04", "application/zip"),
        (b" %PDF-", None),
        (b"", None),
    ],
)
def test_bytes_tell_their_format_by_their_beginning(head: bytes, media_type: str | None) -> None:
    assert sniffed(head) == media_type


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("a.PNG", "image/png"),
        ("https://x/a.jpg?size=1.gif#b.txt", "image/jpeg"),
        ("folder.d/file", None),
        ("a.unknown", None),
        (".txt", None),
        ("b.tar.yml", "application/yaml"),
    ],
)
def test_a_name_tells_its_format_by_its_extension(name: str, media_type: str | None) -> None:
    assert type_of_name(name) == media_type


@pytest.mark.parametrize(
    ("media_type", "head", "phrase"),
    [
        ("image/png", b"\x89PNG\r\n\x1a\n", None),
        ("image/jpg", b"\xff\xd8\xff", None),
        ("image/png", b"\xff\xd8\xff", "its bytes are image/jpeg"),
        ("text/plain", b"%PDF-1", "its bytes are application/pdf"),
        ("image/png", b"hello", "its first bytes are those of no such format"),
        ("audio/unknown", b"hello", "its first bytes are those of no such format"),
        ("application/pdf", b"hello", "its first bytes are those of no such format"),
        ("image/svg+xml", b"<svg/>", None),
        ("application/x-own", b"hello\0", None),
        ("text/plain", b"hello", None),
        ("text/csv", b"a\0b", "its bytes are not text"),
        ("application/json", b"{\0", "its bytes are not text"),
    ],
)
def test_bytes_of_another_format_are_named(media_type: str, head: bytes, phrase: str | None) -> None:
    assert conflict(media_type, head) == phrase


def test_which_types_are_texts() -> None:
    assert [is_text(each) for each in ("text/x", "application/json", "image/svg+xml", "application/pdf", "image/png")] == [
        True, True, True, False, False,
    ]  # fmt: skip


class Form(BaseModel):
    name: str = Field(default="x", min_length=1, max_length=3)
    code: str = Field(default="xx", min_length=2)
    count: int = Field(default=1, ge=1, le=9)
    share: float = Field(default=0.5, gt=0, lt=1)
    tags: list[str] = Field(default=["a", "b"], min_length=2, max_length=3)
    other: dict[str, int] = {}
    is_new: bool = False
    at: datetime | None = None


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"name": 5}, "it must be a string"),
        ({"name": ""}, "it must not be empty"),
        ({"name": "abcd"}, "it must be at most 3 characters long"),
        ({"code": "a"}, "it must be at least 2 characters long"),
        ({"count": "x"}, "it must be an integer"),
        ({"count": 1.5}, "it must be an integer"),
        ({"count": []}, "it must be an integer"),
        ({"count": 0}, "it must be at least 1"),
        ({"count": 10}, "it must be at most 9"),
        ({"share": 0}, "it must be more than 0.0"),
        ({"share": 1}, "it must be less than 1.0"),
        ({"share": "x"}, "it must be a number"),
        ({"share": []}, "it must be a number"),
        ({"tags": "x"}, "it must be an array"),
        ({"tags": ["a"]}, "it must be of at least 2 items"),
        ({"tags": ["a"] * 4}, "it must be of at most 3 items"),
        ({"other": []}, "it must be an object"),
        ({"is_new": "x"}, "it must be true or false"),
        ({"is_new": []}, "it must be true or false"),
        ({"at": "soon"}, "it must be a time such as 2026-11-22T12:00:00Z"),
        ({"at": []}, "it must be a time such as 2026-11-22T12:00:00Z"),
    ],
)
def test_a_person_is_told_what_an_input_must_be(fields: dict[str, Any], form: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Form(**fields)
    assert required_form(refused.value.errors()[0]) == form


def test_another_fault_has_pydantics_words() -> None:
    fault = {"type": "value_error", "msg": "Value error, It is odd"}
    assert required_form(fault) == "It is odd"
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(UUID).validate_python("x")
    assert required_form(refused.value.errors()[0]).startswith("it must be a valid UUID")
    with pytest.raises(ValidationError) as literal:
        TypeAdapter(Colour).validate_python("blue")
    assert required_form({**literal.value.errors()[0], "type": "literal_error"}) == "it must be 'red' or 1"


def nested(levels: int, kind: type) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind is list else {"a": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
def test_a_value_may_have_so_many_levels(kind: type) -> None:
    assert [is_deeper(nested(levels, kind), 3) for levels in (0, 2, 3, 4)] == [False, False, False, True]
    assert not is_deeper(nested(100, kind))
    assert is_deeper(nested(101, kind))


@pytest.mark.parametrize(
    ("text", "values", "depth"),
    [
        (b"", 0, 0),
        (b"[1, [2], {}]", 5, 2),
        (b'{"a": "[[[,,"}', 1, 1),
        (b'["\\"[", "\\\\", []]', 4, 2),
        (b"[[]], [[[", 6, 3),
    ],
)
def test_json_is_measured_however_it_arrives(text: bytes, values: int, depth: int) -> None:
    """Also cut inside of a string, or of an escape."""
    for size in range(1, max(2, len(text) + 1)):
        meter = JsonMeter()
        for start in range(0, len(text), size):
            meter.add(text[start : start + size])
        assert (meter.values, meter.depth) == (values, depth), size


def test_a_file_is_read_up_to_one_byte_more_than_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert [read_bytes(path, most) for most in (3, 4, 5)] == [b"1234", b"12345", b"12345"]
    before = state_of(path)
    assert before[1] == 5
    path.write_bytes(b"123456")
    assert state_of(path) != before
    with pytest.raises(OSError, match="it is no regular file"):
        open_file(Path("/dev/null"))


def test_a_text_is_cut_with_a_note() -> None:
    assert [cut_text("abcd", most) for most in (4, 3)] == ["abcd", "abc… (1 more characters)"]
    assert cut_text("abcd", 1, ": there") == "a… (3 more characters: there)"
    assert [beginning("abcd", most) for most in (4, 3)] == ["abcd", "abc…"]


def declared(parameters: dict[str, Any], result: dict[str, Any] | None = None, text: str = "Do.") -> str:
    """The declaration of a function `do_it`, without the head."""
    return stubs_of([FunctionSchema("do_it", text, parameters, result)]).partition("ToolError(Exception): ...\n\n")[2]


NAMED = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "string"}, "str"),
        ({"type": "null"}, "None"),
        ({"type": "unknown"}, "Any"),
        ({}, "Any"),
        (True, "Any"),
        ({"const": "a"}, "Literal['a']"),
        ({"const": 1.5}, "Any"),
        ({"enum": ["a", 1, None, True]}, "Literal['a', 1, None, True]"),
        ({"enum": []}, "Any"),
        ({"enum": [[1]]}, "Any"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"anyOf": [{"type": "string"}, {"type": "string"}]}, "str"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "str | int"),
        ({"anyOf": [{"type": "string"}, {}]}, "Any"),
        ({"anyOf": []}, "Any"),
        ({"type": "array"}, "list[Any]"),
        ({"type": "array", "items": {"type": "number"}}, "list[float]"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, "dict[str, bool]"),
        ({"$ref": "#/$defs/Text"}, "str"),
        ({"$ref": "#/$defs/Nothing"}, "Any"),
        (NAMED, "DoItP"),
        ({"$ref": "#/$defs/Named"}, "DoItNamed"),
    ],
)
def test_the_type_of_a_parameter(schema: Any, written: str) -> None:
    definitions = {"Text": {"type": "string"}, "Named": NAMED}
    text = declared({"type": "object", "properties": {"p": schema}, "required": ["p"], "$defs": definitions})
    assert f"async def do_it(p: {written}) -> Any:" in text
    assert (f"class {written}(TypedDict):\n    x: int" in text) is ("DoIt" in written)


def test_types_of_one_name_are_numbered_and_stand_before_what_needs_them() -> None:
    outer = {"type": "object", "properties": {"a": NAMED, "b b": NAMED}}
    text = declared({"type": "object", "properties": {"p": outer, "a": NAMED}, "required": ["p"]}, NAMED)
    names = [
        line.partition("(")[0].partition(" =")[0].removeprefix("class ")
        for line in text.splitlines()
        if "TypedDict" in line
    ]
    assert names == ["DoItA", "DoItBB", "DoItP", "DoItA2", "DoItResult"]
    assert """DoItP = TypedDict("DoItP", {'a': NotRequired[DoItA], 'b b': NotRequired[DoItBB]})""" in text
    assert "async def do_it(p: DoItP, a: DoItA2 = ...) -> DoItResult:" in text


@pytest.mark.parametrize(
    ("description", "written"),
    [("Do.", '"""Do."""'), ("", '""" """'), ('Say "x"', '"""Say "x" """'), ('a """ \\b', '"""a \'\'\' \\\\b"""')],
)
def test_a_description_is_a_legal_docstring(description: str, written: str) -> None:
    text = declared({"type": "object"}, None, description)
    compile(text.replace("Any", "object"), "stub", "exec")
    assert text.rstrip().endswith(written)
