"""A run's priority and tenant as Temporal knows them: for the run, its activities and its sub-runs."""

from __future__ import annotations

from temporalio.common import Priority

from mulligan.run_input import RunInput

TENANT_MEMO = "tenant"
"""The key of the tenant in the memo of a run."""


def run_priority(run_input: RunInput | None) -> Priority:
    """The priority (1 to 5) and the fairness key of a run's tasks. What it does not set is that of the workflow."""
    if run_input is None or (run_input.priority is None and run_input.tenant is None):
        return Priority.default
    return Priority(priority_key=run_input.priority, fairness_key=run_input.tenant)
