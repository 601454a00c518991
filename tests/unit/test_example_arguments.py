"""Examples of arguments: valid by the schema and its pydantic model, minimal, and deterministic."""

from __future__ import annotations

import copy
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv6Network
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import UUID1, UUID4, AnyUrl, BaseModel, Field, TypeAdapter, create_model

from mulligan.activities.answers.example_arguments import NoExample, example
from tests.support.examples import examples

FUZZ = settings(derandomize=True, deadline=None, max_examples=examples(100))


def of(**properties: Any) -> dict[str, Any]:
    """An object with these properties, all required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


S = {"type": "string"}
MADE: list[tuple[dict[str, Any], Any]] = [
    (of(customer=S), {"customer": "<customer>"}),
    ({"type": "object", "properties": {"a": S, "b": S}, "required": ["b"]}, {"b": "<b>"}),
    ({"type": "object", "properties": {}}, {}),
    (of(a={"const": 3}, b={"enum": ["x", "y"]}, c={"type": "boolean"}, d={"type": "null"}), {"a": 3, "b": "x", "c": True, "d": None}),
    (of(a={**S, "examples": ["Ada"]}, b={**S, "default": "x"}), {"a": "Ada", "b": "x"}),
    (of(a={**S, "examples": [3], "default": None}), {"a": "<a>"}),
    (of(name={**S, "minLength": 10}, n={**S, "maxLength": 4}, m={**S, "maxLength": 1}), {"name": "<name____>", "n": "<n>", "m": "m"}),
    (of(a={**S, "pattern": "^[a-z]+$"}), {"a": "a"}),
    (of(a={**S, "pattern": r"^\d{5}$"}), {"a": "00000"}),
    (of(a={**S, "pattern": "^(?:x|y)$", "enum": ["x"]}), {"a": "x"}),
    (of(a={**S, "format": "date-time"}, b={**S, "format": "uuid"}), {"a": "2025-01-31T12:00:00Z", "b": "00000000-0000-4000-8000-000000000000"}),
    (of(a={**S, "format": "unheard-of"}), {"a": "<a>"}),
    (of(a={"type": "integer"}, b={"type": "number"}), {"a": 1, "b": 1}),
    (of(a={"type": "integer", "minimum": 5}, b={"type": "integer", "exclusiveMinimum": 5}), {"a": 5, "b": 6}),
    (of(a={"type": "integer", "maximum": -3}, b={"type": "integer", "exclusiveMaximum": 0}), {"a": -3, "b": -1}),
    (of(a={"type": "integer", "multipleOf": 7, "minimum": 15}), {"a": 21}),
    (of(a={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}), {"a": 0.5}),
    (of(a={"type": "number", "multipleOf": 0.25, "minimum": 1.1}), {"a": 1.25}),
    (of(a={"type": "array", "items": S}), {"a": []}),
    (of(a={"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True}), {"a": [1, 2, 3]}),
    (of(tag={"type": "array", "items": S, "minItems": 2, "uniqueItems": True}), {"tag": ["<tag>", "<tag2>"]}),
    (of(a={"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 2, "uniqueItems": True}), {"a": ["x", "y"]}),
    (of(a={"type": "array", "prefixItems": [S, {"type": "integer"}], "minItems": 2, "maxItems": 2}), {"a": ["<a>", 2]}),
    (of(a={"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2}), {"a": {"<key>": 1, "<key2>": 2}}),
    (of(a={"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 2}]}), {"a": 2}),
    (of(a={"anyOf": [{"type": "null"}, False]}), {"a": None}),
    (of(a={"allOf": [of(x=S), {"required": ["y"], "properties": {"y": S}}]}), {"a": {"x": "<x>", "y": "<y>"}}),
    (of(a={"type": ["null", "string"]}), {"a": "<a>"}),
    (of(a={}), {"a": "<a>"}),
    (of(a=True), {"a": "<a>"}),
    ({"$ref": "#/$defs/N", "$defs": {"N": {"type": "object", "properties": {"v": S, "next": {"$ref": "#/$defs/N"}}, "required": ["v"]}}}, {"v": "<v>"}),
    ({**of(a={"anyOf": [{"$ref": "#/$defs/N"}, S]}), "$defs": {"N": of(next={"$ref": "#/$defs/N"})}}, {"a": "<a>"}),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "made"), MADE, ids=[str(index) for index in range(len(MADE))])
def test_the_example_of_a_schema_is_valid_and_leaves_the_schema_unchanged(schema: dict[str, Any], made: Any) -> None:
    before = copy.deepcopy(schema)
    assert example(schema) == made
    assert schema == before
    assert [error.message for error in Draft202012Validator(schema).iter_errors(made)] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/N", "$defs": {"N": of(next={"$ref": "#/$defs/N"})}},
        of(a={"$ref": "#/$defs/none"}),
        of(a={"$ref": "other.json"}),
        of(a=False),
        of(a={"type": "unheard-of"}),
        of(a={**S, "pattern": "^(?P<x>[a-c]{7})(?P=x)$"}),
        of(a={**S, "pattern": "("}),
        of(a={**S, "pattern": "^red|blue$"}),
        of(a={**S, "pattern": r"^[A-Z]{3}-\d{2,4}$"}),
        of(a={**S, "minLength": 3, "maxLength": 2}),
        of(a={**S, "minLength": 10**9}),
        of(a={**S, "pattern": "^a{999999999}$"}),
        of(a={"type": "integer", "minimum": 3, "maximum": 2}),
        of(a={"type": "array", "items": S, "minItems": 10**9}),
        of(a={"type": "array", "items": {"enum": ["x"]}, "minItems": 2, "uniqueItems": True}),
        of(a={"type": "object", "minProperties": 10**9}),
        of(a={"not": {}}),
        of(a={"type": 3}),
        of(a={"allOf": [{"type": "string"}, {"type": "integer", "const": 3}], "enum": [4]}),
        {"type": "object", "required": 3},
    ],
    ids=str,
)
def test_a_schema_without_an_example_raises_no_example(schema: dict[str, Any]) -> None:
    with pytest.raises(NoExample):
        example(schema)


def test_a_schema_that_must_contain_itself_has_no_example() -> None:
    with pytest.raises(NoExample, match="itself"):
        example({"$ref": "#/$defs/N", "$defs": {"N": of(next={"$ref": "#/$defs/N"})}})


def test_a_schema_whose_example_would_be_too_large_has_none() -> None:
    """Twelve nested levels of two values are 4096 values."""
    wide = {f"D{i}": of(a={"$ref": f"#/$defs/D{i + 1}"}, b={"$ref": f"#/$defs/D{i + 1}"}) for i in range(11)}
    with pytest.raises(NoExample, match="too large"):
        example({"$ref": "#/$defs/D0", "$defs": {**wide, "D11": of(a=S)}})
    alternatives = {f"D{i}": {"anyOf": [{"$ref": f"#/$defs/D{i + 1}"}] * 20} for i in range(9)}
    with pytest.raises(NoExample):
        example({"$ref": "#/$defs/D0", "$defs": {**alternatives, "D9": {"not": {}, "type": "unheard-of"}}})


class Color(Enum):
    red = "red"
    blue = "blue"


class Address(BaseModel):
    street: Annotated[str, Field(min_length=3, alias="streetName")]
    zip: Annotated[str, Field(pattern=r"^\d{5}$")]


class Tree(BaseModel):
    value: int
    left: Tree | None = None
    children: list[Tree]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(gt=8)]


class Dog(BaseModel):
    kind: Literal["dog"]


TYPES: list[Any] = [
    str, int, float, bool, None, date, datetime, time, timedelta, Decimal, UUID, UUID1, UUID4, AnyUrl, IPv4Address, IPv6Network,
    Color, Literal["a", 1], Address, Tree, int | None, list[int], dict[str, int], set[str], frozenset[int], bytes,
    tuple[int, str], tuple[int, ...], tuple[Address, Color], list[Address | None], Any, object,
    Annotated[str, Field(min_length=30, max_length=40)], Annotated[str, Field(max_length=1)], Annotated[str, Field(pattern="^[a-f0-9]{8}$")],
    Annotated[int, Field(ge=10, multiple_of=4)], Annotated[float, Field(gt=0, lt=0.5)], Annotated[Decimal, Field(ge=2)],
    Annotated[list[Address], Field(min_length=2)], Annotated[set[int], Field(min_length=3)], Annotated[set[Color], Field(min_length=2)],
    Annotated[dict[str, Address], Field(min_length=1)], Annotated[Cat | Dog, Field(discriminator="kind")],
    Annotated[str, Field(examples=["Ada"])],
]  # fmt: skip


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_the_example_of_a_python_type_is_a_valid_value(kind: Any) -> None:
    model = create_model("M", field=(kind, ...))
    schema = model.model_json_schema()
    made = example(schema)
    assert [error.message for error in Draft202012Validator(schema).iter_errors(made)] == []
    model.model_validate_json(json.dumps(made))
    assert example(schema) == made


@settings(FUZZ, max_examples=examples(30))
@given(st.lists(st.sampled_from(TYPES), max_size=5), st.lists(st.sampled_from(TYPES), max_size=5))
def test_the_example_of_a_model_is_valid_and_has_required_fields_only(needed: list[Any], more: list[Any]) -> None:
    fields: dict[str, Any] = {f"field{index}": (kind, ...) for index, kind in enumerate(needed)}
    fields.update(
        {f"other{index}": (kind | None if isinstance(kind, type) else kind, None) for index, kind in enumerate(more)}
    )
    model = create_model("M", **fields)
    made = example(model.model_json_schema())
    assert set(made) == {f"field{index}" for index in range(len(needed))}
    model.model_validate_json(json.dumps(made))


@settings(FUZZ, max_examples=examples(50))
@given(st.integers(-50, 50), st.integers(0, 9), st.sampled_from([1, 2, 3, 7, 0.5, 0.1]), st.booleans(), st.booleans())
def test_a_number_within_the_bounds_is_found_if_there_is_one(
    low: int, width: int, step: float, above: bool, whole: bool
) -> None:
    kind, bound = "integer" if whole else "number", "exclusiveMinimum" if above else "minimum"
    schema = {"type": kind, bound: low, "maximum": low + width, "multipleOf": step}
    taken = Draft202012Validator(schema)
    if any(taken.is_valid(tenth / 10) for tenth in range(low * 10, (low + width) * 10 + 1)):
        taken.validate(example(schema))
    else:
        with pytest.raises(NoExample):
            example(schema)


@pytest.mark.parametrize(
    "pattern", ["^a$", r"^\d{3}$", "^[^a]x?$", "^.{3,5}$", "^[a-c]+$", "^[0-9a-fA-F]{6}$", "^[A-Z]{2}$", r"^\w+$"]
)
def test_the_example_of_a_simple_pattern_matches_it(pattern: str) -> None:
    kind: TypeAdapter[str] = TypeAdapter(Annotated[str, Field(pattern=pattern)])
    made = example(kind.json_schema())
    assert kind.validate_python(made) == made


@FUZZ
@given(st.dictionaries(st.sampled_from(["type", "properties", "required", "anyOf", "allOf", "$ref", "enum", "minItems", "items", "pattern", "minimum"]), st.sampled_from([None, 3, "object", "#", "array", [], {}, ["a"], [{}], {"a": 3}, {"a": {"$ref": "#"}}, "[", "integer", True])))  # fmt: skip
def test_no_schema_raises_anything_but_no_example(schema: dict[str, Any]) -> None:
    try:
        made = example(schema)
    except NoExample:
        return
    assert [error.message for error in Draft202012Validator(schema).iter_errors(made)] == []
