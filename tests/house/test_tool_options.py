"""The options of tools that belong to features: each is named where its feature is, where users type it, and in one table."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mulligan import McpServer, Tool, tool
from mulligan.features import TOOL_OPTIONS, option_classes
from mulligan.tool import ToolOptions
from mulligan.wire.agent_facts import AgentFacts, Definition, ToolFacts

ROOT = Path(__file__).parents[2]
TYPED = ("mulligan/tool.py", "mulligan/mcp.py", "mulligan/agent.py")
TABLE = "mulligan/features/__init__.py"
WORDS_OF_OTHERS = {"once", "undo", "deferred", "trust", "result_type"}
"""Also names of features, of results, and of an argument of Temporal's: that no field has them is all that is tried."""
OTHER_THINGS = {
    ("on_demand", "activities/models/openai/_openai_usage.py"): "a tier of OpenAI's service",
    ("needs_approval", "mulligan/adopt/openai_agents.py"): "an attribute of the SDK's tools",
}


def test_the_table_the_features_and_what_is_typed_have_the_same_keywords() -> None:
    fields = {
        field.name: (name, field.type) for name, kind in option_classes().items() for field in dataclasses.fields(kind)
    }
    assert {keyword: feature for keyword, (feature, _) in fields.items()} == {
        keyword: feature for keyword, feature in TOOL_OPTIONS.items() if feature is not None
    }
    typed = inspect.get_annotations(ToolOptions)
    assert {keyword: typed[keyword].__forward_arg__ for keyword in fields} == {
        keyword: hint for keyword, (_, hint) in fields.items()
    }
    defaults = {field.name: field.default for kind in option_classes().values() for field in dataclasses.fields(kind)}
    assert {keyword: inspect.signature(tool).parameters[keyword].default for keyword in fields} == defaults


def test_neither_a_tool_nor_what_is_pinned_has_a_field_for_one() -> None:
    """So the type checkers refuse whoever asks a tool for it in another way than by its feature's class."""
    facts = {*ToolFacts.model_fields, *AgentFacts.model_fields, *Definition.model_fields}
    assert not facts & TOOL_OPTIONS.keys()
    assert {field.name for field in dataclasses.fields(Tool)} & TOOL_OPTIONS.keys() == {"trust"}
    assert not {name for name in dir(Tool) if not name.startswith("_")} & TOOL_OPTIONS.keys() - {"trust"}
    assert {field.name for field in dataclasses.fields(McpServer)} & TOOL_OPTIONS.keys()


@pytest.mark.parametrize("keyword", sorted(TOOL_OPTIONS.keys() - WORDS_OF_OTHERS))
def test_it_is_named_in_its_features_folders_and_where_users_type_it_alone(keyword: str) -> None:
    feature = TOOL_OPTIONS[keyword]
    named = {str(path.relative_to(ROOT)) for path in _product() if re.search(rf"\b{keyword}\b", path.read_text())}
    elsewhere = {path for path in named - {*TYPED, TABLE} if feature not in (*Path(path).parts, Path(path).stem)} - {
        path for word, path in OTHER_THINGS if word == keyword
    }
    assert {path for path in elsewhere if not _only_declares(ROOT / path, keyword)} == set()


def _product() -> Iterator[Path]:
    for room in ("mulligan", "workflows", "activities", "tools"):
        for path in (ROOT / room).rglob("*"):
            if path.suffix in (".py", ".html", ".js") and "__pycache__" not in path.parts:
                yield path


def _only_declares(path: Path, keyword: str) -> bool:
    """Whether a file names it only as users do: as an argument of a tool that it declares."""
    text = path.read_text()
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    declared = [each for call in calls for each in call.keywords if each.arg == keyword and _name(call) in _DECLARING]
    return len(re.findall(rf"\b{keyword}\b", text)) == len(declared)


_DECLARING = ("tool", "from_schema", "McpServer", "as_tool")


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
