"""Budgets of tenants: the workflow that adds up what a tenant spends on a day, and the failure of a call over the budget.

All of it is in history: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from mulligan.features.feature_parts import FeatureWords
from mulligan.schema.optional_field import optional_field
from mulligan.wire.model_call import NOT_CALLED

TENANT_BUDGET = "MulliganTenantBudget"
"""Temporal's workflow type."""
BUDGET_PREFIX = "mulligan-budget-"
"""How the workflow ids of all tenants' days begin."""
ADD_COST, SPENT_QUERY = "add_cost", "spent"
"""Temporal's names of the signal and the query."""
OVER_BUDGET = f"{NOT_CALLED}.OverBudget"
"""The type of the failure of an activity that did not call a model, as the tenant has spent its budget. Its detail is an
`OverBudgetDetails`."""


class Spent(BaseModel):
    """What a tenant has spent on one day. Input, query result and result of the workflow.

    `day`: ISO 8601, UTC. `usd`: of all model calls that are counted, their number is `calls`. `estimated_usd`: the part of
    it that is of answers that never became whole.
    """

    day: date
    usd: float = optional_field(0.0)
    calls: int = optional_field(0)
    estimated_usd: float = optional_field(0.0)

    @property
    def end(self) -> datetime:
        """The end of the day."""
        return datetime.combine(self.day + timedelta(days=1), time(), UTC)


class Cost(BaseModel):
    """The signal `add_cost`: USD of one model call.

    `key`: of the attempt; another cost with this key is not counted. `estimated`: whether its answer never became whole.
    """

    usd: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    key: Annotated[str, Field(max_length=64)]
    estimated: bool = optional_field(False)


class OverBudgetDetails(BaseModel):
    """Why a model was not called. `action`: what the run does. `until`: the end of the day, in seconds since the epoch."""

    tenant: str
    action: Literal["wait", "stop"]
    usd: float
    budget: float
    until: float


def budget_id(tenant: str, day: date) -> str:
    """The workflow id of a tenant's day."""
    return f"{BUDGET_PREFIX}{tenant}-{day.isoformat()}"


WORDS = FeatureWords(signals=(ADD_COST,))
