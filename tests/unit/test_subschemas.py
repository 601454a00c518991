"""The walker of JSON schemas (mulligan/schema/subschemas.py)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from referencing import Resource
from referencing.jsonschema import DRAFT3, DRAFT4, DRAFT6, DRAFT7, DRAFT201909, DRAFT202012

from mulligan.output import Output
from mulligan.schema.schema_cost import check_size
from mulligan.schema.subschemas import DATA, References, all_subschemas, check_depth, with_changed_parts

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "enum": {"items": [{"minimum": 1}, True]}},
    "additionalItems": {"minimum": 2},
    "allOf": [{"not": {"minimum": 3}}, {"if": {"minimum": 4}, "then": {"minimum": 5}, "else": {"minimum": 6}}],
    "dependencies": {"a": {"minimum": 7}, "b": ["c"]},
    "dependentSchemas": {"pattern": {"minimum": 8}},
    "patternProperties": {"^a": {"minimum": 9}},
    "contains": {"minimum": 10},
    "propertyNames": {"minimum": 11},
    "unevaluatedProperties": {"minimum": 12},
    "extends": {"minimum": 13},
    "definitions": {"default": {"minimum": 14}},
    "default": {"minimum": 15},
    "enum": [{"minimum": 16}],
    "x-part": {"minimum": 17},
}


@pytest.mark.parametrize(
    "draft", [DRAFT3, DRAFT4, DRAFT6, DRAFT7, DRAFT201909, DRAFT202012], ids=lambda each: each.name
)
def test_each_schema_that_a_draft_knows_is_walked(draft: Any) -> None:
    def known(resource: Resource[Any]) -> list[Any]:
        # DRAFT3 to 7 take lists of names for schemas, too.
        inner = [each for each in resource.subresources() if isinstance(each.contents, dict)]
        return [resource.contents, *(part for each in inner for part in known(each))]

    ours = {id(part) for part in all_subschemas(SCHEMA)}
    assert {id(part) for part in known(draft.create_resource(SCHEMA))} <= ours


def test_data_and_names_are_no_schemas() -> None:
    bounds = {part["minimum"] for part in all_subschemas(SCHEMA) if "minimum" in part}
    assert bounds == set(range(1, 15)) | {17}
    assert not any("title" in part for part in all_subschemas(SCHEMA))


def test_parts_are_changed_and_the_schema_is_not() -> None:
    before = repr(SCHEMA)
    changed = with_changed_parts(SCHEMA, lambda part: {"was": sorted(part)})
    assert repr(SCHEMA) == before
    assert changed.keys() == SCHEMA.keys()
    assert changed["properties"] == {"title": {"was": ["type"]}, "enum": {"was": ["items"]}}
    assert changed["dependencies"] == {"a": {"was": ["minimum"]}, "b": ["c"]}
    assert {key: changed[key] for key in DATA & changed.keys()} == {key: SCHEMA[key] for key in DATA & SCHEMA.keys()}


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("#/allOf/0/not", {"minimum": 3}),
        ("#/definitions/default", {"minimum": 14}),
        ("#/x-part/minimum", 17),
        ("#/x-part/minimum/0", None),
        ("#/properties/none", None),
        ("#/allOf/one", None),
        ("#anchor", None),
        ("https://example.com/other", None),
        (["#"], None),
        (None, None),
    ],
)
def test_a_reference_leads_to_a_part_or_nowhere(reference: Any, target: Any) -> None:
    assert References(SCHEMA).target(reference) == target


def test_anchors_escaped_names_and_the_root_are_found() -> None:
    schema = {"$defs": {"a/b~c d": {"$anchor": "here", "type": "string"}}}
    for reference in ("#/$defs/a~1b~0c%20d", "#here"):
        assert References(schema).target(reference) is schema["$defs"]["a/b~c d"]
    assert References(schema).target("#") is schema


def test_keywords_beside_a_reference_count_and_circles_end() -> None:
    schema: dict[str, Any] = {
        "$defs": {
            "a": {"$ref": "#/$defs/b", "title": "a", "minimum": 1},
            "b": {"type": "integer", "title": "b"},
            "circle": {"anyOf": [], "$ref": "#/$defs/back"},
            "back": {"$ref": "#/$defs/circle"},
        }
    }
    references = References(schema)
    assert references.followed({"$ref": "#/$defs/a", "minimum": 2}) == {"type": "integer", "title": "a", "minimum": 2}
    assert references.followed({"$ref": "#/none", "title": "x"}) == {"$ref": "#/none", "title": "x"}
    assert references.followed({"$ref": "#/$defs/circle"})["anyOf"] == []


@given(
    st.recursive(st.none() | st.booleans(), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner))
)
def test_any_value_is_walked(value: Any) -> None:
    for part in all_subschemas(value):
        assert isinstance(part, dict)
    if isinstance(value, dict):
        assert with_changed_parts(value, lambda part: part) == value
        assert References({"$id": value, "$ref": value}).target("#/$ref") is None or value


def test_a_schema_is_refused_where_it_is_nested_or_refers_too_deeply() -> None:
    def nested(levels: int) -> Any:
        return {"items": nested(levels - 1)} if levels else {}

    check_depth(nested(149))
    with pytest.raises(TypeError, match="its output is nested 201 levels deep"):
        Output.from_declaration(nested(200))
    with pytest.raises(TypeError, match="is nested 151 levels deep; the limit is 150"):
        check_depth(nested(150))

    def chain(links: int) -> Any:
        return {"$ref": "#/$defs/0", "$defs": {str(each): {"$ref": f"#/$defs/{each + 1}"} for each in range(links)}}

    check_size(chain(100))
    with pytest.raises(TypeError, match="more than 150 references that lead from one to the next"):
        check_size(chain(1_000))
