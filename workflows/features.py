"""The features of an agent in a workflow: the classes of the list in mulligan/features/__init__.py."""

from __future__ import annotations

from mulligan.features import parts
from mulligan.workflows.feature import Feature
from mulligan.workflows.people.person_wait import PersonWait
from mulligan.workflows.scheduling import SCHEDULES as CORE_SCHEDULES
from mulligan.workflows.waits import Wait

__all__ = ["FEATURE_CLASSES", "SCHEDULES", "WAITS"]


FEATURE_CLASSES: tuple[type[Feature], ...] = tuple(
    getattr(module, "".join(word.title() for word in module.__name__.rpartition(".")[2].split("_")))
    for module in parts("workflows")
)
"""In the order of the list."""
SCHEDULES = {**CORE_SCHEDULES, **{name: row for each in FEATURE_CLASSES for name, row in each.schedules.items()}}
"""How each activity is scheduled, by its type."""
_WAITS: list[type[Wait]] = [PersonWait, *(wait for each in FEATURE_CLASSES for wait in each.waits)]
WAITS = {wait.name: wait for wait in _WAITS}
"""The classes of waits that continue-as-new carries, by their names."""
