"""Schemas for OpenAI's strict mode: they keep its rules, and values that fit them fit the original schema."""

from __future__ import annotations

import copy
import json
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import AnyUrl, BaseModel, Field, JsonValue
from typing_extensions import TypedDict

from mulligan.activities.models._strict_schema import strict
from mulligan.output import Output
from mulligan.schema.json_schema import NotOfSchema, schema_faults, schema_validator
from tests.support.examples import examples

FUZZ = settings(derandomize=True, deadline=None, max_examples=examples(100))
ALLOWED = {
    "string": {"pattern", "format"},
    "number": {"multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"},
    "integer": {"multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"},
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
    "boolean": set(),
    "null": set(),
}
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}


def check(schema: dict[str, Any]) -> None:
    """Check the rules of OpenAI's guide "Structured model outputs", independently of the product code."""
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    definitions = schema.get("$defs", {})
    walk({key: value for key, value in schema.items() if key != "$defs"}, definitions)
    for inner in definitions.values():
        walk(inner, definitions)


def walk(node: Any, definitions: dict[str, Any]) -> None:
    assert isinstance(node, dict)
    if "$ref" in node:
        assert node.keys() == {"$ref"}
        assert node["$ref"] == "#" or node["$ref"].removeprefix("#/$defs/") in definitions
        return
    keys = node.keys() - {"description"}
    if "anyOf" in node:
        assert keys == {"anyOf"}
        for branch in node["anyOf"]:
            walk(branch, definitions)
        return
    types = [node["type"]] if isinstance(node["type"], str) else node["type"]
    assert keys - {"type", "enum", "const"} <= set().union(*(ALLOWED[kind] for kind in types))
    assert node.get("format", "date") in FORMATS
    assert "(?" not in node.get("pattern", "")
    if "object" in types:
        assert node["additionalProperties"] is False
        assert set(node["required"]) == node["properties"].keys()
        for inner in node["properties"].values():
            walk(inner, definitions)
    if "array" in types:
        walk(node["items"], definitions)


def adapted_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    before = copy.deepcopy(schema)
    adapted = strict(schema)
    assert schema == before
    if adapted is not None:
        check(adapted)
    return adapted


def of(**properties: Any) -> dict[str, Any]:
    """An object with these properties, all required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def closed(**properties: Any) -> dict[str, Any]:
    return {**of(**properties), "additionalProperties": False}


S: dict[str, Any] = {"type": "string"}
NULL: dict[str, Any] = {"type": "null"}

ADAPTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "closed": (of(a=S), closed(a=S)),
    "no parameters": ({"type": "object", "properties": {}}, closed()),
    "titles and examples go": (of(a={**S, "title": "A", "examples": ["x"], "deprecated": True}), closed(a=S)),
    "a default is told": (
        {"type": "object", "properties": {"a": {**S, "default": "x", "description": "An a."}}},
        closed(a={**S, "description": 'An a. (Default: "x".)'}),
    ),
    "optional and nullable": (
        {"type": "object", "properties": {"a": {"type": ["string", "null"]}, "b": {"anyOf": [S, NULL]}}},
        closed(a={"type": ["string", "null"]}, b={"anyOf": [S, NULL]}),
    ),
    "lengths are told": (
        of(a={**S, "minLength": 2, "maxLength": 5}),
        closed(a={**S, "description": "(At least 2 characters; at most 5 characters.)"}),
    ),
    "unique items are told": (
        of(a={"type": "array", "items": S, "uniqueItems": True, "minItems": 1, "maxItems": 3}),
        closed(a={"type": "array", "items": S, "minItems": 1, "maxItems": 3, "description": "(No item twice.)"}),
    ),
    "a known format stays": (of(a={**S, "format": "uuid"}), closed(a={**S, "format": "uuid"})),
    "an unknown format is told": (of(a={**S, "format": "uri"}), closed(a={**S, "description": "(Format: uri.)"})),
    "a pattern stays": (of(a={**S, "pattern": "^a+$"}), closed(a={**S, "pattern": "^a+$"})),
    "a lookahead is told": (
        of(a={**S, "pattern": "^(?!b)a"}),
        closed(a={**S, "description": "(Matches the regular expression ^(?!b)a.)"}),
    ),
    "bounds stay": (
        of(a={"type": "integer", "minimum": 1, "multipleOf": 2}, b={"type": "number", "exclusiveMaximum": 3}),
        closed(a={"type": "integer", "minimum": 1, "multipleOf": 2}, b={"type": "number", "exclusiveMaximum": 3}),
    ),
    "an enum gets its type": (of(a={"enum": ["x", 1, None]}), closed(a={"type": ["string", "integer", "null"], "enum": ["x", 1, None]})),
    "const": (of(a={"const": "x"}), closed(a={"type": "string", "const": "x"})),
    "oneOf is anyOf": (
        of(a={"oneOf": [S, {"type": "integer"}], "discriminator": {"propertyName": "k"}}),
        closed(a={"anyOf": [S, {"type": "integer"}]}),
    ),
    "allOf of one": (of(a={"allOf": [S], "description": "An a."}), closed(a={**S, "description": "An a."})),
    "ref with siblings": (
        {**of(a={"$ref": "#/$defs/D", "description": "An a."}), "$defs": {"D": of(b=S)}},
        {**closed(a={"anyOf": [{"$ref": "#/$defs/D"}], "description": "An a."}), "$defs": {"D": closed(b=S)}},
    ),
    "definitions": (
        {**of(a={"$ref": "#/definitions/D"}), "definitions": {"D": S, "unused": {}}},
        {**closed(a={"$ref": "#/$defs/D"}), "$defs": {"D": S}},
    ),
    "a property may be named like a keyword": (of(**{"not": S, "$ref": S, "anyOf": S}), closed(**{"not": S, "$ref": S, "anyOf": S})),
    "recursion": (
        {"$ref": "#/$defs/N", "$defs": {"N": of(kids={"type": "array", "items": {"$ref": "#/$defs/N"}})}},
        {
            **closed(kids={"type": "array", "items": {"$ref": "#/$defs/N"}}),
            "$defs": {"N": closed(kids={"type": "array", "items": {"$ref": "#/$defs/N"}})},
        },
    ),
    "recursion to the root": (
        of(next={"anyOf": [{"$ref": "#"}, NULL]}),
        closed(next={"anyOf": [{"$ref": "#"}, NULL]}),
    ),
    "alternatives that a constant tells apart": (
        of(a={"anyOf": [of(k={"const": "x"}, b=S), of(k={"enum": ["y"]}, b=S), of(c=S)]}),
        closed(a={"anyOf": [closed(k={"type": "string", "const": "x"}, b=S), closed(k={"type": "string", "enum": ["y"]}, b=S), closed(c=S)]}),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "adapted"), ADAPTED.values(), ids=ADAPTED)
def test_each_rule_adapts_the_schema_to_strict_mode(schema: dict[str, Any], adapted: dict[str, Any]) -> None:
    assert adapted_schema(schema) == adapted


def nested(levels: int) -> dict[str, Any]:
    schema = of(a=S)
    for _ in range(levels - 1):
        schema = of(a=schema)
    return schema


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "any": {},
    "any property": of(a={}),
    "true": of(a=True),
    "not an object": {"type": "array", "items": S},
    "anyOf at the root": {"anyOf": [of(a=S), of(b=S)]},
    "open": {**of(a=S), "additionalProperties": True},
    "a dict": of(a={"type": "object", "additionalProperties": S}),
    "an object of anything": of(a={"type": "object"}),
    "may be left out only": {"type": "object", "properties": {"a": S}},
    "required, but not described": {"type": "object", "properties": {}, "required": ["a"]},
    "patterns of names": {**of(a=S), "patternProperties": {"^x": S}},
    "a tuple": of(a={"type": "array", "prefixItems": [S], "minItems": 1, "maxItems": 1}),
    "a list of anything": of(a={"type": "array"}),
    "not": of(a={**S, "not": {"const": "x"}}),
    "if": {**of(a=S), "if": of(a={"const": "x"}), "then": {}},
    "allOf of two": of(a={"allOf": [S, {"minLength": 1}]}),
    "allOf that says what its sibling says": of(a={"allOf": [{**S, "enum": ["x"]}], "enum": ["y"]}),
    "alternatives with a type": of(a={"anyOf": [S, NULL], "type": "string"}),
    "a reference with a type": {**of(a={"$ref": "#/$defs/D", "type": "string"}), "$defs": {"D": S}},
    "contains": of(a={"type": "array", "items": S, "contains": {"const": "x"}}),
    "unknown reference": of(a={"$ref": "#/$defs/none"}),
    "reference elsewhere": of(a={"$ref": "other.json"}),
    "a reference to itself alone": {"$ref": "#/$defs/N", "$defs": {"N": {"$ref": "#/$defs/N"}}},
    "an enum of objects": of(a={"enum": [{"a": 1}]}),
    "unknown type": of(a={"type": "any"}),
    "nonsense": {"type": "object", "properties": {"a": {"type": 3}}, "required": ["a"]},
    "eleven levels": nested(11),
    "eleven levels by references": {
        **of(a={"$ref": "#/$defs/D0"}),
        "$defs": {**{f"D{i}": of(a={"$ref": f"#/$defs/D{i + 1}"}) for i in range(10)}, "D10": of(a=S)},
    },
    "too many properties": of(**{f"p{i}": S for i in range(5_001)}),
    "too long names": of(**{"p" * 60_001 + str(i): S for i in range(2)}),
    "too many values": of(a={"enum": list(range(1_001))}),
    "too long values": of(a={"enum": [f"{i:0100}" for i in range(251)]}),
    "alternatives of the same first name": of(a={"anyOf": [of(k=S, b=S), of(k=S, c=S)]}),
    "the same by reference": {**of(a={"anyOf": [{"$ref": "#/$defs/D"}, of(k=S, c=S)]}), "$defs": {"D": of(k=S)}},
}


@pytest.mark.parametrize("schema", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_schema_that_strict_mode_cannot_express_is_not_adapted(schema: dict[str, Any]) -> None:
    assert adapted_schema(schema) is None


def test_schemas_at_the_limits_of_strict_mode_are_adapted() -> None:
    assert adapted_schema(nested(10))
    assert adapted_schema(of(**{f"p{i}": S for i in range(5_000)}))
    assert adapted_schema(of(a={"enum": list(range(1_000))}))
    assert adapted_schema(of(a={"enum": [f"{i:059}" for i in range(251)]}))


class Line(BaseModel):
    sku: Annotated[str, Field(min_length=3, pattern="^[A-Z]+$")]
    count: Annotated[int, Field(ge=1, description="How many.")] = 1


class Node(BaseModel):
    value: str
    children: list[Node] = Field(default=[])


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    price: Decimal


class Order(BaseModel):
    lines: list[Line]
    first: Annotated[Line, Field(description="The first.")]
    tree: Node
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    id: UUID
    at: datetime | None = None
    page: AnyUrl
    tags: Annotated[set[str], Field(min_length=1)]
    size: Literal["s", "l"] = "s"


class Loose(TypedDict):
    a: NotRequired[str]


class WithLoose(BaseModel):
    loose: Loose


class WithDict(BaseModel):
    data: dict[str, int]


def test_values_of_an_adapted_pydantic_schema_fit_the_model() -> None:
    adapted = adapted_schema(Order.model_json_schema())
    assert adapted is not None
    assert "How many. (Default: 1.)" in json.dumps(adapted)
    order = {
        "lines": [{"sku": "ABC", "count": 2}],
        "first": {"sku": "ABC", "count": 1},
        "tree": {"value": "a", "children": [{"value": "b", "children": []}]},
        "pet": {"kind": "dog", "price": "1.5"},
        "id": "00000000-0000-4000-8000-000000000000",
        "at": None,
        "page": "https://example.com/",
        "tags": ["x"],
        "size": "l",
    }
    Draft202012Validator(adapted).validate(order)
    Order.model_validate_json(json.dumps(order))
    assert not Draft202012Validator(adapted).is_valid({**order, "size": "m"})


@pytest.mark.parametrize("model", [WithLoose, WithDict])
def test_a_pydantic_model_that_strict_mode_cannot_express_is_not_adapted(model: type[BaseModel]) -> None:
    assert adapted_schema(model.model_json_schema()) is None


NAME = st.sampled_from(["a", "b", "k", "$ref", "type"])
LEAF: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({"type": "string"}),
    st.builds(lambda low: {"type": "string", "minLength": low, "format": "uri"}, st.integers(0, 3)),
    st.builds(lambda low: {"type": "integer", "minimum": low, "default": 5}, st.integers(0, 3)),
    st.just({"enum": ["x", None]}),
    st.just({"$ref": "#/$defs/D", "description": "A D."}),
    st.just({}),
)


def grown(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    objects = st.builds(
        lambda properties, count: {"type": "object", "properties": properties, "required": list(properties)[:count], "title": "T"},
        st.dictionaries(NAME, inner, max_size=3),
        st.integers(0, 3),
    )  # fmt: skip
    return st.one_of(
        objects,
        st.builds(lambda items: {"type": "array", "items": items, "uniqueItems": True}, inner),
        st.builds(lambda key, branches: {key: branches}, st.sampled_from(["anyOf", "oneOf", "allOf"]), st.lists(inner, min_size=1, max_size=2)),
    )  # fmt: skip


@FUZZ
@given(st.recursive(LEAF, grown, max_leaves=8), st.recursive(LEAF, grown, max_leaves=4))
def test_each_adapted_schema_keeps_the_rules_of_strict_mode(schema: dict[str, Any], definition: dict[str, Any]) -> None:
    whole = {**of(root=schema), "$defs": {"D": definition}}
    adapted = adapted_schema(whole)
    assert adapted is None or adapted["additionalProperties"] is False


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "properties", "required", "anyOf", "$ref", "enum", "items", "default", "description", "x"]), inner, max_size=4), max_leaves=12)  # fmt: skip


@FUZZ
@given(
    st.dictionaries(
        st.sampled_from(["type", "properties", "required", "anyOf", "allOf", "$ref", "$defs", "enum"]), JSON
    )
)
def test_adapting_an_invalid_schema_does_not_raise(schema: dict[str, Any]) -> None:
    for given_schema in (schema, {"type": "object", "properties": {"a": schema}, "required": ["a"]}):
        before = copy.deepcopy(given_schema)
        adapted = strict(given_schema)
        assert given_schema == before
        assert adapted is None or isinstance(adapted, dict)


def test_references_of_an_output_that_is_no_object_lead_to_it_inside_of_the_object_that_wraps_it() -> None:
    tree = {
        "type": "array",
        "items": {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/name"}]},
        "$defs": {"name": {"type": "string"}},
    }
    output = Output.from_declaration(tree).whole
    assert schema_faults(schema_validator(output.schema), {"value": ["a", ["b", []]]}) == []
    wrongs: list[JsonValue] = [[1], ["a", [{"value": []}]]]
    for wrong in wrongs:
        assert schema_faults(schema_validator(output.schema), {"value": wrong})
        with pytest.raises(NotOfSchema):
            output.validate({"value": wrong})
    assert output.validate({"value": ["a", ["b", []]]}) == {"value": ["a", ["b", []]]}
