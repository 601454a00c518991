"""docs/features.md says what the hook points of features are, and who uses them, as the code has it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mulligan.features import OWN, option_classes
from mulligan.features.agent_feature import AgentFeature
from mulligan.features.feature_parts import KINDS, FeatureParts
from mulligan.features.tool_option import ToolOption
from mulligan.workflows.feature import Feature

PAGE = Path(__file__).parents[2] / "docs/features.md"
BEGIN, END = "<!-- hook points: written by `make docs` -->\n\n", "\n<!-- end of the hook points -->"
NO_HOOKS = {"agent", "name", "feature", "parts"}
"""What a feature is asked for, or has, whether it wants or not."""
MOST_WITH_ONE_USER = 8


def hooks_of(base: type, kinds: Sequence[type]) -> dict[str, tuple[str, list[str]]]:
    """The hook points of a class, each with what it is for, and the features that use it."""
    found = {}
    described = _attributes(base)
    for name, value in vars(base).items():
        if name.startswith("_") or name in NO_HOOKS:
            continue
        text = described.get(name) or _first_sentence(inspect.getdoc(getattr(value, "fget", None) or value) or "")
        users = [
            _feature_of(kind)
            for kind in kinds
            if getattr(kind, name) is not getattr(base, name) and _has(kind, name, base)
        ]
        found[name] = (text, users)
    return found


def _has(kind: type, name: str, base: type) -> bool:
    own = next(vars(each)[name] for each in kind.__mro__ if name in vars(each))
    return own is not vars(base)[name]


def _feature_of(kind: type) -> str:
    return kind.__module__.rpartition(".")[2]


def _attributes(kind: type) -> dict[str, str]:
    text = inspect.getdoc(kind) or ""
    _, _, listed = text.partition("Attributes:\n")
    return {
        name: " ".join(said.split())
        for name, said in re.findall(r"^    (\w+): (.*(?:\n        .*)*)", listed, re.MULTILINE)
    }


def _first_sentence(text: str) -> str:
    return " ".join(re.split(r"(?<=[.?])\s", text.replace("\n", " "))[0].split())


def all_hooks() -> Mapping[str, Mapping[str, tuple[str, list[str]]]]:
    agents = [each.agent for each in OWN if each.agent is not None]
    flows = [each.workflow for each in OWN if each.workflow is not None]
    described = _attributes(FeatureParts)
    parts = {name: (described[name], [each.name for each in OWN if name in each.places]) for name in KINDS}
    return {
        "Feature, in a run: who uses it, and what it is for": hooks_of(Feature, flows),
        "AgentFeature, as agents are declared": hooks_of(AgentFeature, agents),
        "ToolOption, as tools are declared": hooks_of(ToolOption, [*option_classes().values()]),
        "FeatureParts": parts,
    }


def written() -> str:
    tables = []
    for title, hooks in all_hooks().items():
        rows = [f"{name:12}{_users(users):44}{text}" for name, (text, users) in hooks.items()]
        tables.append("\n".join([title, *(row.rstrip() for row in rows), ""]))
    return "```\n" + "\n".join(tables) + "```\n"


def _users(users: Sequence[str]) -> str:
    return ", ".join(users[:3]) + (f" … ({len(users)})" if len(users) > 3 else "")


def test_the_page_has_the_hook_points_and_their_users_as_the_code_has_them(pytestconfig: pytest.Config) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    on_page, _, after = rest.partition(END)
    if pytestconfig.getoption("--write-docs"):
        PAGE.write_text(f"{before}{BEGIN}{written()}{END}{after}")
        on_page = written()
    assert on_page == written()


def test_each_hook_point_has_a_user_and_few_have_one_alone() -> None:
    users: dict[str, Any] = {
        f"{title}: {name}": used for title, hooks in all_hooks().items() for name, (_, used) in hooks.items()
    }
    assert [name for name, used in users.items() if not used] == []
    assert len([name for name, used in users.items() if len(used) == 1]) <= MOST_WITH_ONE_USER
