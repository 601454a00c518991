"""The declaration of `CodeMode`, and the declarations of functions that scripts call."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from mulligan import Agent, CodeMode, DeclarationError, tool
from mulligan.features.code_mode import RUN_CODE
from mulligan.schema.python_stubs import FunctionSchema, identifier, parameters_of, stubs_of


@tool
def look(place: str) -> str:
    """Look."""
    return place


@tool(name=RUN_CODE)
def own() -> str:
    """A tool of that name."""
    return ""


@tool(name="look-up")
def look_up() -> str:
    """Look up."""
    return ""


@tool(name="look_up")
def look_up_too() -> str:
    """Look up, too."""
    return ""


DECLARATIONS: dict[str, tuple[dict[str, Any], list[Any], str]] = {
    "no calls": ({"max_calls": 0}, [look], "max_calls is 0"),
    "too many calls": ({"max_calls": 1_001}, [look], "max_calls is 1001"),
    "a truth for a number": ({"max_calls": True}, [look], "max_calls is True"),
    "no time": ({"timeout": 0}, [look], "timeout is 0"),
    "too much time": ({"timeout": 301}, [look], "timeout is 301"),
    "a text as time": ({"timeout": "5"}, [look], "timeout is '5'"),
    "a text as tools": ({"tools": "look"}, [look], "tools must be a list"),
    "an unknown tool": ({"tools": ["lok"]}, [look], "'lok', which the agent does not have"),
    "its own name": ({}, [own], "'run_code' is the name of a tool that CodeMode adds; rename yours"),
    "a tool on demand": ({}, [tool(on_demand=True)(look.function)], "'look' cannot be found on demand"),
    "one function for two tools": ({}, [look_up, look_up_too], "one name as Python functions"),
}


@pytest.mark.parametrize("case", DECLARATIONS, ids=str)
def test_a_wrong_declaration_is_refused(case: str) -> None:
    options, tools, says = DECLARATIONS[case]
    with pytest.raises(DeclarationError, match=says):
        Agent(name="coder", model="scripted:x", tools=tools, features=[CodeMode(**options)])


def test_the_functions_are_typed() -> None:
    order = {"type": "object", "properties": {"id": {"type": "integer"}, "a b": {"const": 1}}, "required": ["id"]}
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]}}}
    parameters = {
        "type": "object",
        "properties": {
            "limit": {"type": "integer"},
            "kind": {"enum": ["new", "old", None]},
            "tree": {"$ref": "#/$defs/N"},
            "tags": {"type": "array", "items": {"type": ["string", "number"]}},
        },
        "required": ["kind", "tree"],
        "$defs": {"N": node},
    }
    stubs = stubs_of(
        [
            FunctionSchema("find-orders", 'Find """orders""".', parameters, {"type": "array", "items": order}),
            FunctionSchema("odd", "", {"type": "object", "properties": {"a-b": {"type": "boolean"}}}),
        ]
    )
    ast.parse(stubs)
    assert (
        "async def find_orders(kind: Literal['new', 'old', None], tree: FindOrdersN, limit: int = ..., "
        "tags: list[str | float] = ...) -> list[FindOrdersResult]:" in stubs
    )
    assert "class FindOrdersN(TypedDict):\n    next: NotRequired[FindOrdersN | None]" in stubs
    assert "async def odd(arguments: OddArguments) -> Any:" in stubs
    assert parameters_of(parameters) == ["kind", "tree", "limit", "tags"]


@pytest.mark.parametrize(
    ("name", "written"), [("a-b", "a_b"), ("1st", "_1st"), ("class", "class_"), ("", "_"), ("é", "_"), ("ok_1", "ok_1")]
)
def test_a_name_becomes_pythons(name: str, written: str) -> None:
    assert identifier(name) == written
