"""The features of agents: their names in one list, and how each is declared (`Agent(features=[…])`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mulligan.features.tool_option import ToolOption

FEATURES = (
    "handoffs",
    "recorded_tools",
    "once",
    "guarded",
    "rules",
    "approvals",
    "deferred",
    "server_questions",
    "sub_agents",
    "tool_search",
    "skills",
    "code_mode",
    "budgets",
    "clearing",
    "compaction",
    "guardrails",
    "fallback",
    "background",
    "batch",
    "calls_in_text",
    "undo",
    "experiments",
)
"""The names of the features. A feature has a folder or a file of its name where it has a part (docs/features.md). They stand
around a step, a model call and a tool call in this order: the first is the outermost."""

TOOL_OPTIONS: Mapping[str, str | None] = {
    "needs_approval": "approvals",
    "approval_timeout": "approvals",
    "approval_reminder": "approvals",
    "asks_person": "approvals",
    "deferred": "deferred",
    "deferred_timeout": "deferred",
    "result_type": "deferred",
    "on_cancel": "deferred",
    "consequential": "guarded",
    "trust": None,
    "undo": "undo",
    "undo_attempts": "undo",
    "once": "once",
    "on_demand": "tool_search",
}
"""The keywords that features give to `@tool`, `McpServer` and `as_tool`, with the feature of each. None: a label of results,
which each build has."""


def option_class(feature: str) -> type[ToolOption]:
    """The class that has the keywords of an installed feature as its fields."""
    kind: type[ToolOption] = import_module(f"mulligan.features.{feature}").OPTION
    return kind


@cache
def option_classes() -> tuple[type[ToolOption], ...]:
    """The classes of all features that are installed."""
    names = dict.fromkeys(name for name in TOOL_OPTIONS.values() if name in FEATURES)
    return tuple(option_class(name) for name in names if name is not None)


def parts(room: str) -> Iterator[ModuleType]:
    """The modules of the features' parts in a room (`workflows`, `cli` …), in the order of the list.

    A part is a file, or a folder with a file of the same name.
    """
    for name in FEATURES:
        module = f"mulligan.{room}.{name}"
        if (spec := find_spec(module)) is not None:
            module = f"{module}.{name}" if spec.submodule_search_locations else module
            if find_spec(module) is not None:
                yield import_module(module)
