"""Arguments of tools that have a JSON schema: what is left out equals the default that the schema states."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.activities.answers.prepare_call import ValidArguments, accepted
from mulligan.schema import schema_defaults
from mulligan.schema.schema_arguments import SchemaArguments
from mulligan.schema.schema_defaults import without_defaults
from tests.support.spelled_values import digest_in

POINT = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number", "default": 0}}}
RED = {"type": "object", "properties": {"kind": {"const": "red"}, "n": {"type": "integer", "default": 1}}}
BLUE = {
    "type": "object",
    "properties": {"kind": {"const": "blue", "default": "blue"}, "n": {"type": "integer", "default": 1}},
}


def digest(schema: dict[str, Any], value: Any) -> str:
    accepts = SchemaArguments.declared({"type": "object", "properties": {"v": schema}, "$defs": {"Point": POINT}})
    found = accepted(accepts, {"v": value})
    assert isinstance(found, ValidArguments), found
    return digest_in(found)


@pytest.mark.parametrize(
    ("schema", "one", "two"),
    [
        (POINT, {"x": 1}, {"y": 0.0, "x": 1.0}),
        ({"$ref": "#/$defs/Point"}, {"x": 1}, {"y": 0, "x": 1}),
        ({"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}, {"x": 1}, {"y": 0, "x": 1}),
        ({"allOf": [{"$ref": "#/$defs/Point"}, {"properties": {"z": {"default": None}}}]}, {"x": 1, "z": None}, {"y": 0, "x": 1}),
        ({"type": "array", "items": POINT}, [{"x": 1}], [{"x": 1, "y": 0}]),
        ({"prefixItems": [{"type": "string"}, POINT]}, ["a", {"x": 1}], ["a", {"x": 1, "y": 0}]),
        ({"type": "object", "additionalProperties": POINT}, {"k": {"x": 1}}, {"k": {"y": 0, "x": 1}}),
        ({"type": "object", "properties": {"p": {**POINT, "default": {"x": 1, "y": 0}}}}, {}, {"p": {"x": 1}}),
        ({"anyOf": [RED, BLUE]}, {"kind": "red"}, {"kind": "red", "n": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_equal_values(schema: dict[str, Any], one: Any, two: Any) -> None:
    assert digest(schema, one) == digest(schema, two)


@pytest.mark.parametrize(
    ("schema", "one", "two"),
    [
        ({"type": "array", "uniqueItems": True}, [1, 2], [2, 1]),
        ({"type": "string", "format": "date-time"}, "2026-11-28T10:00:00Z", "2026-11-28T10:00:00+00:00"),
        ({"type": ["string", "integer"]}, 5, "5"),
        (POINT, {"x": 1}, {"x": 1, "y": 1}),
        ({"anyOf": [RED, BLUE]}, {"kind": "red"}, {"kind": "blue"}),
        ({"anyOf": [{"properties": {"a": {"default": 1}}}, {"properties": {"b": {"default": 2}}}]}, {"a": 1}, {"b": 2}),
        ({"allOf": [{"properties": {"a": {"default": 1}}}, {"properties": {"a": {"default": 2}}}]}, {"a": 1}, {"a": 2}),
        ({"patternProperties": {"^a": {}}, "additionalProperties": POINT}, {"k": {"x": 1}}, {"k": {"x": 1, "y": 0}}),
    ],
    ids=str,
)  # fmt: skip
def test_other_values(schema: dict[str, Any], one: Any, two: Any) -> None:
    assert digest(schema, one) != digest(schema, two)


def random_schema(chance: Random, levels: int) -> dict[str, Any]:
    kind = chance.choice(["number", "string", "object", "object", "array"] if levels else ["number", "string"])
    if kind == "object":
        properties = {name: random_schema(chance, levels - 1) for name in "abc"[: chance.randint(1, 3)]}
        for each in properties.values():
            if chance.random() < 0.6:
                each["default"] = spelled(each, meaning(each, chance), chance)
        return {"type": "object", "properties": properties}
    schema: dict[str, Any] = {"type": kind, **({"items": random_schema(chance, levels - 1)} if kind == "array" else {})}
    return {"anyOf": [schema, {"type": "null"}]} if chance.random() < 0.3 else schema


def meaning(schema: dict[str, Any], chance: Random) -> Any:
    """A value in a form that equal ones share: objects have all of their defaults."""
    if "anyOf" in schema:
        return None if chance.random() < 0.5 else meaning(schema["anyOf"][0], chance)
    if schema["type"] == "object":
        given = {name: meaning(each, chance) for name, each in schema["properties"].items() if chance.random() < 0.5}
        return whole(schema, given)
    if schema["type"] == "array":
        return [meaning(schema["items"], chance) for _ in range(chance.randint(0, 2))]
    return chance.choice([0, 1, 2.5] if schema["type"] == "number" else ["", "a", "1"])


def whole(schema: dict[str, Any], value: Any) -> Any:
    if "anyOf" in schema:
        return value if value is None else whole(schema["anyOf"][0], value)
    if schema["type"] == "array":
        return [whole(schema["items"], each) for each in value]
    if schema["type"] != "object":
        return float(value) if isinstance(value, int) else value
    fields = schema["properties"]
    with_defaults = {name: each["default"] for name, each in fields.items() if "default" in each} | value
    return {name: whole(fields[name], each) for name, each in sorted(with_defaults.items())}


def spelled(schema: dict[str, Any], value: Any, chance: Random) -> Any:
    if "anyOf" in schema:
        return None if value is None else spelled(schema["anyOf"][0], value, chance)
    if isinstance(value, dict):
        fields = schema["properties"]
        names = [
            name
            for name in value
            if "default" not in fields[name]
            or value[name] != whole(fields[name], fields[name]["default"])
            or chance.random() < 0.5
        ]
        chance.shuffle(names)
        return {name: spelled(fields[name], value[name], chance) for name in names}
    if isinstance(value, list):
        return [spelled(schema["items"], each, chance) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() and chance.random() < 0.5 else value


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_all_ways_to_write_a_value_are_one_call_and_other_values_are_another_one(seed: int) -> None:
    chance = Random(seed)
    schema = random_schema(chance, 3)
    seen: dict[str, str] = {}
    for _ in range(4):
        value = whole(schema, meaning(schema, chance))
        digests = {digest(schema, spelled(schema, value, chance)) for _ in range(3)}
        assert len(digests) == 1, (schema, value)
        seen[json.dumps(value)] = digests.pop()
    assert len({*seen.values()}) == len(seen)


def test_a_schema_without_end_leaves_the_value_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = {"allOf": [{"$ref": "#"}], "properties": {"a": {"default": 1}}}
    assert without_defaults(endless, {"a": 1}) == {"a": 1}
    monkeypatch.setattr(schema_defaults, "MOST_STEPS", 3)
    many = {"properties": {"a": {"default": 1}, "b": {"items": {}}}}
    assert without_defaults(many, {"a": 1, "b": [1, 2, 3]}) == {"a": 1, "b": [1, 2, 3]}
