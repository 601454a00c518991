"""Strategies for inputs that are almost what a parser expects."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, NamedTuple

import zstandard
from hypothesis import strategies as st

NUMBERS = st.integers(-3, 3) | st.sampled_from([10**20, 10**400, -1, 2**63, 1.5, -0.0, 1e308])
WORDS = st.sampled_from(
    ["", "a", "b", "type", "$ref", "x" * 70, "é", "\u2028", "\0", "\ud800", '"', "\\", "{", "```", "<tool_call>", "name", "role", "null"]
) | st.text(max_size=6)  # fmt: skip


def json_values(names: st.SearchStrategy[str] = WORDS, max_leaves: int = 20) -> st.SearchStrategy[Any]:
    """JSON values with these names of fields."""
    return st.recursive(
        st.none() | st.booleans() | NUMBERS | WORDS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
        max_leaves=max_leaves,
    )


def repeated(parts: st.SearchStrategy[str], most: int) -> st.SearchStrategy[str]:
    """Texts of one part repeated, between two others, of at most `most` characters: they show what is not linear."""
    return st.builds(
        # No more copies than fit: half a gigabyte of them, before they are cut, ends the process.
        lambda before, part, count, after: (
            (before + part * min(count, most // max(1, len(part)) + 1))[: most - len(after)] + after
        ),
        *(parts, parts, st.sampled_from([2, 10, 100, 1_000, 10_000, 100_000, 1_000_000]), parts),
    )


TOKENS = st.sampled_from(
    [
        *("{", "}", "[", "]", ",", ":", '"', "'", "\\", "\\u", "\n", " ", "\t", "```", "```json\n", "//", "/*", "*/", "#", "null", "None"),
        *("True", "NaN", "1e", "-", "0x1", '"a"', "'a'", "a", "{}", "[[", '{"a":', '{"a":1,', '"{', '\\"', "…", "\ufeff", "\0", "\ud800"),
        *("<tool_call>", "</tool_call>", "<function=find>", "</function>", "<think>", "</think>", "[TOOL_CALLS]", "<|python_tag|>"),
        *("Action: find\n", "Action Input: ", "find(", "[find(", "a=", "```tool_code\n", "</parameter>", '<invoke name="find">', "</invoke>", '{"name": "find", "arguments": {', '"parameters":', "<parameter=a>", ")"),
    ]
)  # fmt: skip
"""Pieces of JSON, of JSON that a model misspells, and of the marks around calls in a text."""


def texts(most: int) -> st.SearchStrategy[str]:
    """Texts of such pieces, and JSON that is cut, changed or repeated."""
    pieces = st.lists(TOKENS | WORDS, max_size=25).map("".join)
    cut = st.builds(lambda value, end: json.dumps(value)[:end], json_values(), st.integers(1, 200))
    return pieces | cut | repeated(TOKENS, most) | repeated(pieces, most) | st.text(max_size=50)


def documents(names: st.SearchStrategy[str] = WORDS) -> st.SearchStrategy[bytes]:
    """JSON documents as bytes, plain and compressed, whole and damaged."""
    plain = json_values(names).map(lambda value: json.dumps(value).encode())
    many = st.builds(_repeated_value, json_values(names, 4), st.sampled_from([1_000, 30_000]))
    nested = st.builds(
        lambda opener, count: opener * count,
        st.sampled_from([b"[", b'{"a":', b'{"messages":[']),
        st.integers(90, 5_000),
    )
    known = plain | many | nested | st.binary(max_size=60)
    damaged = st.builds(
        lambda data, at, byte: data[:at] + byte + data[at + 1 :], known, st.integers(0, 100), st.binary(max_size=2)
    )
    return known | damaged | (known | damaged).map(zstandard.compress) | st.builds(zeros)  # fmt: skip


def _repeated_value(value: Any, count: int) -> bytes:
    """A list of equal values. Of long ones there are fewer: with 50 MB for each input the process has no memory left."""
    data = json.dumps(value).encode()
    return b"[" + b",".join([data] * min(count, 8_000_000 // len(data) + 1)) + b"]"


@cache
def zeros() -> bytes:
    """400 MB in a few kilobytes."""
    compressing = zstandard.ZstdCompressor().compressobj(size=400_000_000)
    return b"".join(compressing.compress(b"0" * 1_000_000) for _ in range(400)) + compressing.flush()


class DeepSchema(NamedTuple):
    """A JSON schema that is nested deeply, and whose references lead to themselves, in circles, or from one to the next."""

    keywords: list[str]
    levels: int
    innermost: Any
    references: list[str]
    chain: int

    def schema(self) -> dict[str, Any]:
        """The schema. A report shows how it is made, as it may have thousands of parts."""
        part = self.innermost
        for level in range(self.levels):
            keyword = self.keywords[level % len(self.keywords)]
            in_map, in_list = keyword in ("properties", "$defs", "patternProperties"), keyword in ("anyOf", "allOf")
            part = {keyword: {"a": part} if in_map else [part, {}] if in_list else part}
            if self.references and level % 7 == 0:
                part["$ref"] = self.references[level % len(self.references)]
        linked = {f"n{number}": {"$ref": f"#/$defs/n{number + 1}"} for number in range(self.chain)}
        circle = {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}
        ends = {f"n{self.chain}": {"$ref": "#/$defs/n0"}, "self": {"$ref": "#/$defs/self"}}
        properties = {"a": part, "b": {"$ref": "#/$defs/n0"}}
        return {"type": "object", "properties": properties, "required": ["a"], "$defs": linked | circle | ends}


def deep_schemas() -> st.SearchStrategy[DeepSchema]:
    """Schemas on both sides of the limits."""
    keywords = [
        "properties",
        "items",
        "anyOf",
        "allOf",
        "not",
        "additionalProperties",
        "patternProperties",
        "$defs",
        "default",
        "x",
    ]
    references = [
        "#",
        "#/$defs/a",
        "#/$defs/self",
        "#/$defs/n0",
        "#/properties/a",
        "#/properties/a/anyOf/0",
        "#a",
        "urn:x",
    ]
    return st.builds(
        DeepSchema,
        st.lists(st.sampled_from(keywords), min_size=1, max_size=4),
        st.sampled_from([0, 3, 40, 70, 140, 160, 900, 1_500]),
        st.sampled_from([{}, {"type": "string"}, {"$ref": "#"}, {"$ref": "#/$defs/a"}, {"default": [1]}]),
        st.lists(st.sampled_from(references), max_size=3),
        st.sampled_from([0, 3, 140, 160, 700]),
    )  # fmt: skip


KEYWORDS = st.sampled_from(
    [
        *("properties", "items", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref", "$dynamicRef", "$defs", "definitions"),
        *("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "dependentSchemas", "prefixItems"),
        *("enum", "const", "default", "required", "type", "pattern", "minItems", "maxItems", "minLength", "minimum", "uniqueItems"),
        *("$id", "$anchor", "$dynamicAnchor", "$schema", "format", "title", "description", "contains", "multipleOf"),
    ]
)  # fmt: skip
_REFERENCES = st.sampled_from(
    ["#", "#/$defs/a", "#/properties/a", "#a", "#/allOf/0", "https://example.com/x", "a", "#/$defs/b", "urn:x"]
)


def schemas() -> st.SearchStrategy[Any]:
    """JSON schemas: most are valid, and many refer to themselves."""
    leaf = st.sampled_from(
        [
            *({}, True, False, {"type": "string"}, {"type": "integer", "minimum": 0}, {"enum": ["a", 1, None]}, {"const": {"a": []}}),
            *({"type": "string", "pattern": "^(a+)+$"}, {"pattern": "^\\p{L}"}, {"type": ["array", "null"]}, {"minLength": 2.0}),
        ]
    ) | st.builds(lambda reference: {"$ref": reference}, _REFERENCES)  # fmt: skip

    def compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        named = st.dictionaries(st.sampled_from(["a", "b", "value", "$ref", "type"]), inner, max_size=3)
        several = st.lists(inner, min_size=1, max_size=3)
        return st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["object", "array", "string", ["object", "null"]]),
                **dict.fromkeys(("properties", "$defs", "definitions", "dependentSchemas"), named),
                **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), several),
                **dict.fromkeys(("items", "not", "if", "then", "else", "contains", "propertyNames"), inner),
                **dict.fromkeys(("additionalProperties", "unevaluatedProperties"), inner),
                "patternProperties": st.dictionaries(st.sampled_from(["^a", "(", "^(a+)+$"]), inner, max_size=2),
                "required": st.lists(st.sampled_from(["a", "b", "c"]), unique=True, max_size=2),
                **dict.fromkeys(("$ref", "$dynamicRef"), _REFERENCES),
                "$id": st.sampled_from(["https://example.com/x", "a", "urn:x"]),
                **dict.fromkeys(("$anchor", "$dynamicAnchor"), st.sampled_from(["a", "b"])),
                "$schema": st.sampled_from(
                    ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema", "https://example.com/meta"]
                ),
                "default": json_values(max_leaves=3),
            },
        )  # fmt: skip

    return st.recursive(leaf, compound, max_leaves=12)
