"""What a worker asks, and tells, about what model calls cost. Without the feature for budgets nothing is limited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from temporalio import activity

from mulligan.activities.models.protocol import Request
from mulligan.values import Usage
from mulligan.wire.run_context import RunContext


class Spending:
    """No tenant has a limit. `TenantBudgets` overrides all of it, and says what each method is for."""

    def is_limited(self, tenant: str | None) -> bool:
        """Whether a tenant has a budget."""
        del tenant
        return False

    async def check(self, context: RunContext) -> None:
        """Check that the tenant of a run may call a model."""

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
        """Add the cost of a model call."""

    async def add_hosted(self, context: RunContext, model: str, names: Sequence[str], key: Sequence[object]) -> None:
        """Add the cost of calls that the model's provider has carried out."""

    @asynccontextmanager
    async def void_counted(self, context: RunContext, model: str, request: Request, *part: str) -> AsyncIterator[None]:
        """Count the answer that the block requests, if the block raises instead of taking it."""
        del context, model, request, part
        yield


def attempt_key(attempt: int | None = None) -> tuple[object, ...]:
    """The identity of an attempt of the running activity; `attempt`: its number, None for the running one."""
    info = activity.info()
    return info.workflow_run_id, info.activity_id, attempt or info.attempt
