"""Asks before each model call what its tenant has spent today, and adds the call's cost (docs/budgets.md)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowQueryFailedError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from mulligan.activities.heartbeat import INTERVAL
from mulligan.activities.models.estimated_usage import estimated_usage
from mulligan.activities.models.protocol import Request
from mulligan.activities.spending import Spending, attempt_key
from mulligan.client.budget_file import BudgetFile
from mulligan.client.worker_versions import unpinned
from mulligan.prices import Prices, cost_of_hosted, counted_cost
from mulligan.values import Usage
from mulligan.wire.budgets import (
    ADD_COST,
    OVER_BUDGET,
    SPENT_QUERY,
    TENANT_BUDGET,
    Cost,
    OverBudgetDetails,
    Spent,
    budget_id,
)
from mulligan.wire.run_context import RunContext

TIMEOUT = timedelta(seconds=10)
TRIES, PAUSE = 3, 1.0
"""How often a worker is asked for what is spent, and the seconds between. Then Temporal retries the activity."""
SECONDS_TO_ADD = 15.0
"""How long an answer that was paid for waits until its cost is counted."""

_log = logging.getLogger(__name__)


class TenantBudgets(Spending):
    """The budgets of one worker.

    Args:
        file: The path of the operator's file; empty: there are no budgets.
        prices: Of the models that the worker knows.
        task_queue: Where workflows run; None: that of the activity. (Model calls may have a task queue of their own.)

    Raises:
        DeclarationError: the file is at fault.
    """

    def __init__(self, file: str, prices: Prices, task_queue: str | None) -> None:
        self._file, self._prices, self._task_queue = BudgetFile(file), prices, task_queue

    def is_limited(self, tenant: str | None) -> bool:
        """Whether a tenant has a budget."""
        return self._file.read().of(tenant) is not None

    async def check(self, context: RunContext) -> None:
        """Check that the tenant of a run may call a model.

        Raises:
            ApplicationError: it has spent its budget, and Temporal does not retry; or no worker says what it has spent, and
                Temporal retries.
        """
        budgets, tenant = self._file.read(), context.tenant
        budget = budgets.of(tenant)
        if budget is None or tenant is None:
            return
        spent = await _with_heartbeats(_spent_today(tenant))
        if spent.usd < budget:
            return
        details = OverBudgetDetails(
            tenant=tenant,
            action=budgets.over_budget,
            usd=spent.usd,
            budget=budget,
            until=spent.end.timestamp(),
        )
        raise ApplicationError(
            f"The tenant {tenant!r} has spent {spent.usd:.2f} of its {budget:.2f} USD of {spent.day} (UTC).",
            details.model_dump(mode="json"),
            type=OVER_BUDGET,
            non_retryable=True,
            category=ApplicationErrorCategory.BENIGN,
        )

    async def add(
        self,
        context: RunContext,
        model: str,
        usage: Usage,
        others: Mapping[str, Usage] | None = None,
        *,
        key: Sequence[object] = (),
        estimated: bool = False,
    ) -> None:
        """Add the cost of a model call, if the run's tenant has a budget. It is counted once for each `key`.

        If Temporal does not take it within `SECONDS_TO_ADD`, it is not counted: a failure would lose the answer, and the
        model would be called and paid again.

        Args:
            context: Of the run.
            model: `provider:NAME`.
            usage: All tokens.
            others: The part of `usage` that other models used, by model.
            key: What identifies the call, beside the run; the activity's attempt if it is empty.
            estimated: Whether the answer never became whole; an estimated `usage` says so itself.
        """
        tenant = context.tenant
        if tenant is None or not self.is_limited(tenant):
            return
        prices = self._prices.of_all([model, *(others or {})])
        if cost := counted_cost(prices, model, usage, others):
            digest = _digest(context, *(key or attempt_key()))
            await self._add(tenant, Cost(usd=cost, key=digest, estimated=estimated or usage.estimated))

    async def add_hosted(self, context: RunContext, model: str, names: Sequence[str], key: Sequence[object]) -> None:
        """Add the cost of calls that the model's provider has carried out, as `add` does.

        Args:
            context: Of the run.
            model: `provider:NAME`.
            names: Of the provider's tools, one for each call. Those without a price cost nothing.
            key: That of the model call.
        """
        tenant = context.tenant
        if tenant is None or not self.is_limited(tenant):
            return
        if cost := cost_of_hosted(self._prices.of, model, names):
            await self._add(tenant, Cost(usd=cost, key=_digest(context, "hosted", *(key or attempt_key()))))

    async def _add(self, tenant: str, cost: Cost) -> None:
        try:
            async with asyncio.timeout(SECONDS_TO_ADD):
                await self._signal(tenant, cost)
        except TimeoutError:
            _log.warning("%s USD of the tenant %r are not counted: Temporal did not take them.", cost.usd, tenant)

    @asynccontextmanager
    async def void_counted(self, context: RunContext, model: str, request: Request, *part: str) -> AsyncIterator[None]:
        """Count the answer that the block requests, by estimate, if the block raises instead of taking it.

        Nothing is counted where nothing has arrived, unless the answer was given up: then the provider was working on it.

        Args:
            context: Of the run.
            model: `provider:NAME`.
            request: The request, to which the provider adds what arrives.
            *part: What distinguishes the request from others of this attempt of the activity.
        """
        try:
            yield
        except BaseException as error:
            written = request.written
            is_given_up = isinstance(error, asyncio.CancelledError | TimeoutError)
            if self.is_limited(context.tenant) and (is_given_up or written.size or written.usage.total_tokens):
                key = (*attempt_key(), *part)
                await self.add(context, model, estimated_usage(request), key=key, estimated=True)
            raise

    async def _signal(self, tenant: str, cost: Cost) -> None:
        """Signal the workflow of the tenant's day until it has the cost. If somebody has ended it, it continues the sum."""
        spent, reuse = Spent(day=today()), WorkflowIDReusePolicy.REJECT_DUPLICATE
        while True:
            try:
                await activity.client().start_workflow(
                    TENANT_BUDGET,
                    spent,
                    id=budget_id(tenant, spent.day),
                    task_queue=self._task_queue or activity.info().task_queue,
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                    id_reuse_policy=reuse,
                    versioning_override=unpinned(),
                    start_signal=ADD_COST,
                    start_signal_args=[cost],
                    static_summary=f"what tenant {tenant} spends on {spent.day}",
                    rpc_timeout=TIMEOUT,
                )
                return
            except WorkflowAlreadyStartedError:
                with suppress(ApplicationError):
                    spent, reuse = await _spent_today(tenant), WorkflowIDReusePolicy.ALLOW_DUPLICATE
                    continue
            except RPCError:
                pass
            await asyncio.sleep(PAUSE)


def _digest(context: RunContext, *key: object) -> str:
    return hashlib.sha256("\x1f".join(map(str, (context.trace, context.conversation, *key))).encode()).hexdigest()[:16]


def today() -> date:
    """The day whose budget applies, in UTC."""
    return datetime.now(UTC).date()


async def _with_heartbeats(answer: Coroutine[Any, Any, Spent]) -> Spent:
    """Wait for an answer. It may take longer than the heartbeat timeout: then another attempt would call the model too.

    The details are those of the attempt before: this one has not written any spans yet.
    """
    info, task = activity.info(), asyncio.ensure_future(answer)
    try:
        while not (await asyncio.wait([task], timeout=INTERVAL))[0]:
            if not info.is_local:
                activity.heartbeat(*info.heartbeat_details)
        return task.result()
    finally:
        task.cancel()


async def _spent_today(tenant: str) -> Spent:
    """What a tenant has spent today.

    Raises:
        ApplicationError: no worker has answered. Temporal retries.
    """
    day = today()
    handle = activity.client().get_workflow_handle(budget_id(tenant, day))
    for tries_left in reversed(range(TRIES)):
        try:
            spent: Spent = await handle.query(SPENT_QUERY, result_type=Spent, rpc_timeout=TIMEOUT)
            return spent
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return Spent(day=day)
            failure: Exception = error
        except WorkflowQueryFailedError as error:
            failure = error
        if tries_left:
            await asyncio.sleep(PAUSE)
    raise ApplicationError(
        f"No worker says what the tenant {tenant!r} has spent today: {failure}", type="UnknownSpending"
    ) from failure
