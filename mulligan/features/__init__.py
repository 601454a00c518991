"""The features of agents: their names in one list, and how each is declared (`Agent(features=[…])`)."""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

FEATURES = (
    "once",
    "approvals",
    "deferred",
    "server_questions",
    "sub_agents",
    "budgets",
    "compaction",
    "fallback",
    "background",
    "batch",
    "calls_in_text",
)
"""The names of the features. A feature has a folder or a file of its name where it has a part: here, in `workflows/` and in
`activities/`. They stand around a step, a model call and a tool call in this order: the first is the outermost."""


def parts(room: str) -> Iterator[ModuleType]:
    """The modules of the features' parts in a room (`workflows`, `activities`), in the order of the list."""
    for name in FEATURES:
        package = f"mulligan.{room}.{name}"
        if find_spec(package) is not None and find_spec(f"{package}.{name}") is not None:
            yield import_module(f"{package}.{name}")
