"""The budgets of tenants, as a worker asks for them."""

from __future__ import annotations

from mulligan.activities.budgets.tenant_budgets import TenantBudgets
from mulligan.activities.spending import Spending
from mulligan.prices import Prices


def spending(file: str, prices: Prices, task_queue: str | None) -> Spending:
    """The budgets of a worker, as of TenantBudgets. Without a file there are none, and a model call asks for none."""
    return TenantBudgets(file, prices, task_queue) if file else Spending()
