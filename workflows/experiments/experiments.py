"""Experiments have a workflow of their own, which begins runs; in a run there is nothing of them (docs/iterate.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mulligan.workflows.experiments.experiment_workflow import SCHEDULES, ExperimentWorkflow
from mulligan.workflows.feature import Feature

if TYPE_CHECKING:
    from mulligan.workflows.turn import Turn


class Experiments(Feature):
    """The workflow of experiments, and how its activities are scheduled."""

    workflows: ClassVar = (ExperimentWorkflow,)
    schedules: ClassVar = SCHEDULES

    @classmethod
    def is_used(cls, turn: Turn) -> bool:  # noqa: ARG003
        """No turn uses it."""
        return False
