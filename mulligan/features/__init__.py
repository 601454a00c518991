"""The features of agents: their names in one list, and how each is declared (`Agent(features=[…])`)."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any

from mulligan.features.feature_parts import FeatureParts, FeatureWords

if TYPE_CHECKING:
    from mulligan.features.tool_option import ToolOption

OWN = (
    FeatureParts("handoffs", "agent workflow activities words"),
    FeatureParts("recorded_tools", "workflow activities words"),
    FeatureParts("once", "option workflow"),
    FeatureParts("guarded", "agent option workflow"),
    FeatureParts("rules", "workflow workflows activities commands paths pages"),
    FeatureParts("approvals", "agent option workflow"),
    FeatureParts("deferred", "option workflow activities words commands paths"),
    FeatureParts("server_questions", "workflow"),
    FeatureParts("sub_agents", "workflow activities words"),
    FeatureParts("tool_search", "agent option workflow activities request words"),
    FeatureParts("skills", "agent"),
    FeatureParts("code_mode", "agent workflow activities words"),
    FeatureParts("budgets", "workflow workflows spending words commands"),
    FeatureParts("clearing", "workflow request", agent="ClearToolResults"),
    FeatureParts("compaction", "agent workflow activities words"),
    FeatureParts("guardrails", "agent workflow activities words"),
    FeatureParts("fallback", "workflow"),
    FeatureParts("background", "agent workflow activities words paths"),
    FeatureParts("batch", "agent workflow workflows activities words"),
    FeatureParts("calls_in_text", "agent text_calls"),
    FeatureParts("undo", "option workflow workflows activities goes_on words commands paths pages"),
    FeatureParts("experiments", "workflows activities words commands pages"),
)
"""Mulligan's own features (docs/features.md). They stand around a step, a model call and a tool call in this order: the
first is the outermost."""
FEATURES = tuple(each.name for each in OWN)
"""Their names. A feature has a folder or a file of its name where it has a part."""
_logger = logging.getLogger(__name__)
LOAD = "MULLIGAN_LOAD"
"""The variable that names the modules of a worker; commands and the door take the parts of features from them."""


def loaded_parts() -> tuple[FeatureParts, ...]:
    """The features of the modules that `MULLIGAN_LOAD` names, for commands and the door. Workers know what they load."""
    return _parts_in(os.environ.get(LOAD, ""))


@cache
def _parts_in(names: str) -> tuple[FeatureParts, ...]:
    """The features of modules. `names`: of these, separated by commas."""
    found: dict[str, FeatureParts] = {}
    for name in filter(None, map(str.strip, names.split(","))):
        if (here := os.getcwd()) not in sys.path:
            sys.path.append(here)
        try:
            module = import_module(os.path.normpath(name).removesuffix(".py").replace(os.sep, "."))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a worker ends then; commands go on without the module
            _logger.warning("The module %s of %s cannot be imported: %s: %s", name, LOAD, type(error).__name__, error)
            continue
        for parts in filter(None, map(_parts_of, vars(module).values())):
            if parts.name in FEATURES or found.setdefault(parts.name, parts) is not parts:
                _logger.warning("There is a feature %s already, so that of %s is not used.", parts.name, name)
    return tuple(found.values())


def _parts_of(value: object) -> FeatureParts | None:
    """The parts that a value of a module is, or that a class of features has."""
    parts = getattr(value, "parts", None) if isinstance(value, type) else value
    return parts if isinstance(parts, FeatureParts) else None


def installed(kind: str) -> Mapping[str, Any]:
    """The parts of one kind that features have, Mulligan's own and the loaded ones, by the features' names.

    A loaded one that cannot be imported is left out, and the log says why.
    """
    found = {each.name: part for each in OWN if (part := getattr(each, kind)) is not None}
    for each in loaded_parts():
        try:
            part = getattr(each, kind)
        except Exception as error:  # noqa: BLE001 - users' modules may raise anything
            what = f"{type(error).__name__}: {error}"
            _logger.warning("The %s of the feature %s cannot be imported: %s", kind, each.name, what)
        else:
            found |= {each.name: part} if part is not None else {}
    return found


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


@cache
def option_classes() -> Mapping[str, type[ToolOption]]:
    """The options of tools that the installed features have, by the features' names."""
    return {each.name: kind for each in OWN if (kind := each.option) is not None}


@cache
def all_words() -> FeatureWords:
    """The words of the features together."""
    said = zip(*installed("words").values(), strict=True)
    return FeatureWords(*(tuple(chain.from_iterable(words)) for words in said))
