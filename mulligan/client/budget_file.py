"""The operator's file with the budgets of tenants (`MULLIGAN_BUDGETS`), which is read again when it has changed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from mulligan.client.operator_file import OperatorFile

OTHERS = "*"
"""The key of the budget of each tenant that has none of its own."""
FORM = 'over_budget = "wait" or "stop", and under [usd_per_day] lines such as acme = 20.0 or "*" = 5.0'
_Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Budgets(BaseModel):
    """USD that tenants may spend a day (UTC), and what their runs do when it is spent."""

    model_config = ConfigDict(extra="forbid")

    over_budget: Literal["wait", "stop"] = "wait"
    usd_per_day: dict[str, _Usd] = Field(default_factory=dict)

    def of(self, tenant: str | None) -> float | None:
        """The budget of a tenant; None: it has none. Runs without a tenant have none."""
        return None if tenant is None else self.usd_per_day.get(tenant, self.usd_per_day.get(OTHERS))


class BudgetFile(OperatorFile[Budgets]):
    """The file. An empty path: there are no budgets.

    Raises:
        DeclarationError: it cannot be read, or has something else than budgets.
    """

    def __init__(self, path: str) -> None:
        super().__init__("MULLIGAN_BUDGETS", path, Budgets, FORM)
