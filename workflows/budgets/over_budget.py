"""A model that was not called because the tenant's budget is spent, and the wait until it may be called."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from mulligan.wire.tenant_budget import OVER_BUDGET, OverBudgetDetails
from mulligan.workflows import limits

__all__ = ["BudgetWait", "OverBudget", "raise_if_over_budget"]


class OverBudget(Exception):
    """A model was not called. `details`: why, and what the run does."""

    def __init__(self, details: OverBudgetDetails) -> None:
        super().__init__(f"The budget of tenant {details.tenant!r} is spent.")
        self.details = details


def raise_if_over_budget(error: ActivityError) -> None:
    """Raise OverBudget if that is why an activity has failed."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type == OVER_BUDGET and cause.details:
        try:
            details = OverBudgetDetails.model_validate(cause.details[0])
        except ValidationError:
            return
        raise OverBudget(details) from None


class BudgetWait:
    """The waits of one run: the budget may be raised, so it asks again, after a minute, two minutes … at most an hour."""

    def __init__(self) -> None:
        self.since: float | None = None
        """When the run began to wait, in seconds since the epoch; None: it does not."""
        self._interval = limits.BUDGET_FIRST

    def begin(self) -> None:
        """The run waits, if it does not already."""
        if self.since is None:
            self.since, self._interval = workflow.time(), limits.BUDGET_FIRST

    def end(self) -> None:
        """A model was called."""
        self.since = None

    def dump(self) -> dict[str, float]:
        """What continue-as-new carries; empty if the run does not wait."""
        return {} if self.since is None else {"since": self.since, "interval": self._interval}

    def load(self, state: dict[str, float]) -> None:
        """Continue with what `dump` returned."""
        self.since, self._interval = state["since"], state["interval"]

    async def wait(self, until: float, is_stopped: Callable[[], bool]) -> None:
        """Wait for the time to ask again: soon after `until`, when a new day begins, at the latest."""
        # Not at the same second for all runs that wait.
        at = min(workflow.time() + self._interval, until + workflow.random().uniform(0, limits.BUDGET_SPREAD))
        self._interval = min(self._interval * 2, limits.BUDGET_LONGEST)
        try:
            await workflow.wait_condition(
                is_stopped, timeout=max(0.001, at - workflow.time()), timeout_summary="the tenant's budget is spent"
            )
        except TimeoutError:
            return
