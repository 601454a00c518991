"""A run's priority, its tenant and where it comes from, as Temporal knows them: for the run, its activities, and lists."""

from __future__ import annotations

from typing import Any

from temporalio.common import Priority

from mulligan.run_input import FORKED_FROM_MEMO, RESUMED_FROM_MEMO, RunInput

TENANT_MEMO = "tenant"
"""The key of the tenant in the memo of a run."""


def run_priority(run_input: RunInput | None) -> Priority:
    """The priority (1 to 5) and the fairness key of a run's tasks. What it does not set is that of the workflow."""
    if run_input is None or (run_input.priority is None and run_input.tenant is None):
        return Priority.default
    return Priority(priority_key=run_input.priority, fairness_key=run_input.tenant)


def run_memo(run_input: RunInput) -> dict[str, Any]:
    """The memo of a run with this input. Its client sets it, so that lists have it before a worker has begun the run; so
    does its workflow, as clients in other languages need not.
    """
    memo: dict[str, Any] = {"agent": run_input.agent}
    if run_input.tenant:
        memo[TENANT_MEMO] = run_input.tenant
    if run_input.resumed_from:
        memo[RESUMED_FROM_MEMO] = run_input.resumed_from.identity
    if run_input.forked_from:
        memo[FORKED_FROM_MEMO] = run_input.forked_from.identity
    return memo
