"""The features of agents: their names in one list, and how each is declared (`Agent(features=[…])`)."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from mulligan.features.parts import Parts

if TYPE_CHECKING:
    from mulligan.features.tool_option import ToolOption

OWN = (
    Parts("handoffs", "agent workflow activities events spans"),
    Parts("recorded_tools", "workflow activities events"),
    Parts("once", "option workflow"),
    Parts("guarded", "agent option workflow"),
    Parts("rules", "workflow workflows activities commands paths pages"),
    Parts("approvals", "agent option workflow"),
    Parts("deferred", "option workflow activities events commands paths"),
    Parts("server_questions", "workflow"),
    Parts("sub_agents", "workflow activities events"),
    Parts("tool_search", "agent option workflow activities request events"),
    Parts("skills", "agent"),
    Parts("code_mode", "agent workflow activities events spans"),
    Parts("budgets", "workflow workflows spending own_words commands"),
    Parts("clearing", "workflow request", agent="ClearToolResults"),
    Parts("compaction", "agent workflow activities events model_calls spans"),
    Parts("guardrails", "agent workflow activities events spans"),
    Parts("fallback", "workflow"),
    Parts("background", "agent workflow activities events model_calls spans paths"),
    Parts("batch", "agent workflow workflows activities events own_words"),
    Parts("calls_in_text", "agent text_calls"),
    Parts("undo", "option workflow workflows activities goes_on events commands paths pages"),
    Parts("experiments", "workflows activities events own_words commands pages"),
)
"""Mulligan's own features (docs/features.md). They stand around a step, a model call and a tool call in this order: the
first is the outermost."""
FEATURES = tuple(each.name for each in OWN)
"""Their names. A feature has a folder or a file of its name where it has a part."""
LOAD = "MULLIGAN_LOAD"
"""The variable that names the modules of a worker; commands and the door take the parts of features from them."""


@cache
def loaded_parts() -> tuple[Parts, ...]:
    """The features of the modules that `MULLIGAN_LOAD` names, for commands and the door. Workers know what they load."""
    found: list[Parts] = []
    for name in filter(None, map(str.strip, os.environ.get(LOAD, "").split(","))):
        if (here := os.getcwd()) not in sys.path:
            sys.path.append(here)
        try:
            module = import_module(name.removesuffix(".py").replace("/", "."))
        except Exception:  # noqa: BLE001 - a worker says what is wrong with a user's module; commands go on without it
            logging.getLogger(__name__).warning("The module %s of %s cannot be imported.", name, LOAD)
            continue
        found += [each for each in vars(module).values() if isinstance(each, Parts) and each not in found]
    return tuple(found)


def installed_parts() -> tuple[Parts, ...]:
    """Mulligan's own features, and the loaded ones."""
    return (*OWN, *loaded_parts())


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
    kind = next(each for each in OWN if each.name == feature).option
    assert kind is not None
    return kind


@cache
def option_classes() -> tuple[type[ToolOption], ...]:
    """The classes of all features that are installed."""
    return tuple(kind for each in OWN if (kind := each.option) is not None)
