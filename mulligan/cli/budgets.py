"""`mulligan budget`: what tenants have spent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mulligan.cli._terminal import (
    OK,
    WRONG_USE,
    AsJson,
    connect_or_fail,
    fail,
    print_json,
    print_line,
    print_progress,
)
from mulligan.schema.printable import printable

if TYPE_CHECKING:
    from datetime import date

    from temporalio.client import Client

    from mulligan.wire.budgets import Spent

MOST_TENANTS, PARALLEL_QUERIES = 1_000, 20


async def budget(
    tenant: Annotated[
        str | None,
        typer.Argument(help="One tenant. Without it, all that have spent something.", show_default=False),
    ] = None,
    day: Annotated[
        str | None, typer.Option(help="Another day than today, such as 2026-11-23 (UTC).", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show what tenants with a budget have spent on a day (docs/budgets.md). The budgets are those of MULLIGAN_BUDGETS here.

    Examples: `mulligan budget`, `mulligan budget acme --json`

    Exit code: 0, also if nothing was spent; 2 no server, or no worker answers.
    """
    from datetime import UTC, date, datetime

    from mulligan.client.budget_file import BudgetFile
    from mulligan.client.settings import settings

    try:
        chosen = date.fromisoformat(day) if day else datetime.now(UTC).date()
    except ValueError:
        fail(f"--day is {day!r}, which is not a date such as 2026-11-23.")
    budgets = BudgetFile(settings().budgets).read()
    client = await connect_or_fail()
    tenants = [tenant] if tenant is not None else await _tenants(client, chosen)
    limit = asyncio.Semaphore(PARALLEL_QUERIES)
    costs = zip(tenants, await asyncio.gather(*(_spent(client, name, chosen, limit) for name in tenants)), strict=True)
    rows: list[dict[str, Any]] = [
        {
            "tenant": name,
            "day": chosen.isoformat(),
            "usd": spent.usd,
            "calls": spent.calls,
            "estimated_usd": spent.estimated_usd,
            "budget": budgets.of(name),
        }
        for name, spent in costs
        if spent
    ]
    if as_json:
        print_json(rows)
    elif not tenants:
        print_progress(f"no tenant with a budget has spent anything on {chosen} (UTC).")
    for row in rows if not as_json else ():
        of = "" if row["budget"] is None else f" of {row['budget']:,.2f}"
        calls = f"{row['calls']:,} model call{'' if row['calls'] == 1 else 's'}"
        part = f"; {_usd(row['estimated_usd'])} of it is an estimate" if row["estimated_usd"] else ""
        line = f"{row['tenant']}: {_usd(row['usd'])}{of} USD spent on {chosen} (UTC), {calls}{part}"
        print_line(printable(line))
    return OK if rows or not tenants else WRONG_USE


def _usd(amount: float) -> str:
    """An amount with cents, or below a cent with six digits, so that it is not taken for nothing."""
    return f"{amount:,.2f}" if amount >= 0.01 or not amount else f"{amount:.6f}"


async def _tenants(client: Client, day: date) -> list[str]:
    """The tenants that have spent something on a day."""
    from mulligan.wire.budgets import TENANT_BUDGET, budget_id

    prefix, suffix = budget_id("\0", day).split("\0")
    query = f"WorkflowType = '{TENANT_BUDGET}' AND WorkflowId STARTS_WITH '{prefix}'"
    names: dict[str, None] = {}
    async for run in client.list_workflows(query):
        if run.id.endswith(suffix):
            names[run.id.removeprefix(prefix).removesuffix(suffix)] = None
        if len(names) >= MOST_TENANTS:
            print_progress(f"more than {MOST_TENANTS:,} tenants: the others are left out.")
            break
    return sorted(names)


async def _spent(client: Client, tenant: str, day: date, limit: asyncio.Semaphore) -> Spent | None:
    """What a tenant has spent; None, and a line on stderr, if no worker says it."""
    from temporalio.client import WorkflowQueryFailedError
    from temporalio.service import RPCError, RPCStatusCode

    from mulligan.client.read_run import query_run
    from mulligan.wire.budgets import SPENT_QUERY, Spent, budget_id

    try:
        async with limit:
            handle = client.get_workflow_handle(budget_id(tenant, day))
            return Spent.model_validate(await query_run(handle, SPENT_QUERY))
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return Spent(day=day)
        print_progress(f"no worker says what {tenant} has spent: {error.message}")
    except WorkflowQueryFailedError as error:
        print_progress(f"no worker says what {tenant} has spent: {error}")
    return None


COMMANDS = (budget,)
