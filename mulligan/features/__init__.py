"""The features of agents: their names in one list, and how each is declared (`Agent(features=[…])`)."""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

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
