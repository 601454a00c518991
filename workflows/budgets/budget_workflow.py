"""`MulliganTenantBudget`: adds up what one tenant spends on one day."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RawValue

from mulligan.prices import round_usd
from mulligan.wire.budgets import ADD_COST, SPENT_QUERY, TENANT_BUDGET, Cost, Spent
from mulligan.wire.read_payload import read_payloads
from mulligan.workflows import limits


@workflow.defn(name=TENANT_BUDGET, sandboxed=False)
class TenantBudget:
    """Takes the cost of model calls by signal until its day is over. A query returns the sum."""

    def __init__(self) -> None:
        self._usd, self._estimated, self._calls, self._signals = 0.0, 0.0, 0, 0
        self._keys: set[str] = set()
        self._before = Spent(day=workflow.now().date())
        """What the runs before it, which have continued as new, have added up."""
        workflow.set_signal_handler(ADD_COST, self._add)
        workflow.set_query_handler(SPENT_QUERY, self._spent)

    @workflow.run
    async def run(self, start: RawValue) -> Spent:
        """Wait for the end of the day, and a while longer for calls that began before it."""
        [self._before] = read_payloads(workflow.payload_converter(), [start.payload], [Spent])
        end = self._before.end.timestamp() + limits.AFTER_BUDGET_DAY
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._signals >= limits.BUDGET_SIGNALS, timeout=max(0.001, end - workflow.time())
            )
            workflow.continue_as_new(self._spent())
        return self._spent()

    def _add(self, argument: Any = None) -> None:
        self._signals += 1
        try:
            cost = Cost.model_validate(argument)
        except ValidationError:
            return
        if cost.key in self._keys:
            return
        self._keys.add(cost.key)
        self._usd, self._calls = round_usd(self._usd + cost.usd), self._calls + 1
        self._estimated += cost.usd if cost.estimated else 0.0

    def _spent(self) -> Spent:
        before = self._before
        return Spent(
            day=before.day,
            usd=round_usd(before.usd + self._usd),
            calls=before.calls + self._calls,
            estimated_usd=round_usd(before.estimated_usd + self._estimated),
        )
