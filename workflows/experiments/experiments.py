"""Experiments have a workflow of their own, which begins runs; in a run there is nothing of them (docs/what-if.md)."""

from __future__ import annotations

from mulligan.workflows.experiments.experiment_workflow import ExperimentWorkflow

WORKFLOWS: tuple[type, ...] = (ExperimentWorkflow,)
"""What each worker serves for them."""
