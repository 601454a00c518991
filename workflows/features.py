"""The features of agents in a workflow: the classes of the list in mulligan/features/__init__.py, and of loaded modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from temporalio import workflow

from mulligan.errors import DeclarationError
from mulligan.features import FEATURES, OWN
from mulligan.workflows.feature import Feature
from mulligan.workflows.people.person_wait import PersonWait
from mulligan.workflows.scheduling import SCHEDULES as CORE_SCHEDULES
from mulligan.workflows.scheduling import Schedule
from mulligan.workflows.waits import Wait

LOADED_FEATURES = "mulligan_loaded_features"
"""The name of the function by which a worker tells its workflows the features of its loaded modules. There is no registry in
the process: two workers may have loaded different ones."""
FEATURE_CLASSES: tuple[type[Feature], ...] = tuple(kind for each in OWN if (kind := each.workflow) is not None)
"""Mulligan's own, in the order of the list."""


class MissingFeatureError(Exception):
    """This worker lacks a feature of an agent. The workflow task fails, and the run waits for a worker that has it."""


@dataclass(frozen=True)
class InstalledFeatures:
    """The features that a worker has.

    `loaded`: those of loaded modules, by their names. `schedules`: how each activity is scheduled, by its type. `waits`: the
    classes of waits that continue-as-new carries, by their names.
    """

    loaded: Mapping[str, type[Feature]]
    schedules: Mapping[str, Schedule]
    waits: Mapping[str, type[Wait]]

    def declared(self, names: Iterable[str]) -> list[type[Feature]]:
        """The classes of loaded modules among the features that an agent is declared with.

        Raises:
            MissingFeatureError: this worker lacks one of the features.
        """
        names = list(names)
        if missing := [name for name in names if name not in FEATURES and name not in self.loaded]:
            raise MissingFeatureError(
                f"the agent is declared with the feature {missing[0]!r}, which this worker does not have; load its module "
                "(--load) on all workers of the task queue. Until then, the run waits for a worker that has it."
            )
        return [self.loaded[name] for name in names if name in self.loaded]


def installed() -> InstalledFeatures:
    """The features of the worker that runs this workflow."""
    return with_loaded(workflow.extern_functions().get(LOADED_FEATURES, tuple)())


@lru_cache
def with_loaded(loaded: tuple[type[Feature], ...]) -> InstalledFeatures:
    """Mulligan's features and those of loaded modules.

    Raises:
        DeclarationError: a feature has a name, a wait or a row for an activity that another one has, or a `begin_turn`.
    """
    names: dict[str, type[Feature]] = {}
    schedules: dict[str, Schedule] = dict(CORE_SCHEDULES)
    waits: dict[str, type[Wait]] = {PersonWait.name: PersonWait}
    for each in (*FEATURE_CLASSES, *loaded):
        new_waits = {wait.name: wait for wait in each.waits}
        _check_new(each, "feature", {each.feature}, {*names, *(FEATURES if each in loaded else ())})
        _check_new(each, "wait", new_waits, waits)
        _check_new(each, "activity", each.schedules, schedules)
        if each in loaded and each.begin_turn is not Feature.begin_turn:
            raise DeclarationError(
                f"{_dotted(each)} has a begin_turn, which is called before it is known what the agent is declared with; "
                "do it in step."
            )
        names[each.feature] = each
        schedules |= each.schedules
        waits |= new_waits
    return InstalledFeatures({each.feature: each for each in loaded}, schedules, waits)


def _check_new(feature: type[Feature], what: str, names: Iterable[str], others: Iterable[str]) -> None:
    if taken := sorted({*names} & {*others}):
        raise DeclarationError(
            f"{_dotted(feature)}: another feature, or Mulligan itself, already has {what} {taken[0]!r}; "
            "rename one of them."
        )


def _dotted(feature: type[Feature]) -> str:
    return f"{feature.__module__}.{feature.__name__}"
