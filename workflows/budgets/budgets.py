"""Waits, or ends the turn, where a model was not called because the tenant's budget is spent (docs/budgets.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ValidationError
from temporalio import workflow

from mulligan.wire.budgets import OVER_BUDGET, OverBudgetDetails
from mulligan.workflows import limits
from mulligan.workflows.budgets.budget_workflow import TenantBudget
from mulligan.workflows.feature import EndTurn, Feature, StepAgain
from mulligan.workflows.model_errors import ModelNotCalled
from mulligan.workflows.waits import Wait, WaitKind

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent
    from mulligan.workflows.turn import Turn


@dataclass(kw_only=True, eq=False)
class BudgetWait(Wait):
    """The wait of a run for a budget. `interval`: seconds until it asks again, as the budget may have been raised."""

    name: ClassVar[str] = "budget"
    ended_by: ClassVar[WaitKind | None] = "timer"

    tenant: str
    usd: float
    budget: float
    until: float
    interval: float = field(default_factory=lambda: limits.BUDGET_FIRST)

    @property
    def ends_at(self) -> float:
        """The end of the day."""
        return self.until

    def describe(self, others: Sequence[Wait], key: str) -> tuple[str, str]:
        """The tenant, and what it has spent."""
        del others, key
        spent = f"`{self.tenant}` has spent {self.usd:.2f} of its {self.budget:.2f} USD of the day"
        return f"waiting, as tenant {spent},", "; it asks again until then"


WORKFLOWS = (TenantBudget,)


class Budgets(Feature):
    """The waits of one agent: it asks again after a minute, two minutes … at most an hour."""

    waits: ClassVar = (BudgetWait,)

    def __init__(self, agent: RunningAgent) -> None:
        super().__init__(agent)
        self._wait: BudgetWait | None = None
        """The wait of the step that is being tried."""

    @classmethod
    def is_used(cls, turn: Turn) -> bool:
        """Only tenants have budgets, which operators may change while it runs."""
        return turn.input.tenant is not None

    async def step(self, then: Callable[[], Awaitable[None]]) -> None:
        """Wait where the budget is spent.

        Raises:
            EndTurn: the run ends where the budget is spent.
            StepAgain: it has waited.
        """
        if (carried := self.agent.waits.carried(BudgetWait)) is not None:
            await self._until_next_try(carried)
        try:
            await then()
        except ModelNotCalled as not_called:
            refused = _refused(not_called)
            if refused is None:
                raise
            if refused.action == "stop":
                raise EndTurn("max_cost") from None
            wait = self._wait or BudgetWait(key="", tenant=refused.tenant, usd=0.0, budget=0.0, until=0.0)
            wait.usd, wait.budget, wait.until = refused.usd, refused.budget, refused.until
            await self._until_next_try(wait)
        self._wait = None

    def dump(self) -> dict[str, Any] | None:
        """The wait of a step that begins again, as JSON."""
        return asdict(self._wait) if self._wait else None

    def load(self, state: Any) -> None:
        """Continue with what `dump` returned."""
        self._wait = BudgetWait(**state)

    async def _until_next_try(self, wait: BudgetWait) -> None:
        """Wait for the time to ask again: soon after the end of the day at the latest.

        Raises:
            StepAgain: always.
        """
        # Not at the same second for all runs that wait.
        end = wait.until + workflow.random().uniform(0, limits.BUDGET_SPREAD)
        at = min(workflow.time() + wait.interval, end)
        with self.agent.waits.entered(wait):
            await self.agent.waits.until(
                wait, lambda: self.agent.is_stopped, at=at, summary="the tenant's budget is spent"
            )
        wait.interval = min(wait.interval * 2, limits.BUDGET_LONGEST)
        self._wait = wait
        raise StepAgain


def _refused(not_called: ModelNotCalled) -> OverBudgetDetails | None:
    if not_called.kind != OVER_BUDGET or not not_called.details:
        return None
    try:
        return OverBudgetDetails.model_validate(not_called.details[0])
    except ValidationError:
        return None
