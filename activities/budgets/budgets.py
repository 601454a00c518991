"""The budgets of tenants, as a worker asks for them."""

from __future__ import annotations

from mulligan.activities.budgets.tenant_budgets import TenantBudgets
from mulligan.prices import Prices

__all__ = ["spending"]


def spending(file: str, prices: Prices, task_queue: str | None) -> TenantBudgets:
    """The budgets of a worker, as of TenantBudgets."""
    return TenantBudgets(file, prices, task_queue)
