"""The activities of experiments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mulligan.activities.experiments.experiment_contents import ExperimentContents
from mulligan.activities.experiments.run_row import RunRowActivities
from mulligan.activities.experiments.score_row import ScoreRowActivities
from mulligan.activities.services import Services


def activities(services: Services) -> list[Callable[..., Any]]:
    """The activities of a worker."""
    contents = ExperimentContents()
    rows, scores = RunRowActivities(services, contents), ScoreRowActivities(services, contents)
    return [rows.price_row, rows.run_row, scores.check_experiment, scores.score_row]
