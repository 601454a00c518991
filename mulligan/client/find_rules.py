"""Reads and deletes the rules of approval of runs and tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client, WorkflowExecution, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client.find_runs import readable_memo
from mulligan.client.read_run import UNDECODABLE, query_run
from mulligan.client.send_update import RunEndedError, send_update
from mulligan.errors import UpdateRefusedError
from mulligan.wire.approval_rules import (
    FORGET_RULE,
    RULES_MEMO,
    RULES_PREFIX,
    RULES_QUERY,
    TENANT_RULES,
    ForgetRule,
    ShownRule,
    rules_id,
)

MOST_WORKFLOWS = 1_000
"""Tenants and open runs that are asked for their rules."""
_PARALLEL = 20
_UNREADABLE = (RPCError, WorkflowQueryFailedError, *UNDECODABLE)


@dataclass
class AllRules:
    """Rules, the oldest first. `unread`: why workflows that have some did not answer, by their ids. `is_complete`: whether
    all were asked.
    """

    rules: list[ShownRule] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    is_complete: bool = True


async def read_rules(
    client: Client,
    *,
    tenant: str | None = None,
    run_id: str | None = None,
    may_see: Callable[[WorkflowExecution], Awaitable[bool]] | None = None,
) -> AllRules:
    """The rules of a tenant, of an open run, or of both; with neither, of all tenants and all open runs.

    `may_see` decides on each run, where all are read.

    Raises:
        RPCError: Temporal could not list the workflows.
    """
    all_rules = AllRules()
    sources: dict[str, str | None] = {} if tenant is None else {rules_id(tenant): tenant}
    if run_id is not None:
        sources[run_id] = None
    if not sources:
        all_rules.is_complete = await _find_sources(client, sources, may_see)
    limit = asyncio.Semaphore(_PARALLEL)
    await asyncio.gather(*(_read(client, each, of, limit, all_rules) for each, of in sources.items()))
    all_rules.rules.sort(key=lambda rule: rule.at)
    return all_rules


async def delete_rule(client: Client, rule: ShownRule, by: str | None) -> None:
    """Delete a rule. Calls that begin from then on are not approved by it.

    Raises:
        UpdateRefusedError: it is not there any more.
        UpdateTimeoutError: no worker has answered.
        RPCError: Temporal refuses the request.
    """
    at = rules_id(rule.tenant) if rule.tenant is not None else rule.run or ""
    try:
        await send_update(client, at, FORGET_RULE, ForgetRule(name=rule.name, by=by).model_dump())
    except RunEndedError:
        raise UpdateRefusedError(f'There is no rule "{rule.name}" any more.') from None


async def _find_sources(
    client: Client, sources: dict[str, str | None], may_see: Callable[[WorkflowExecution], Awaitable[bool]] | None
) -> bool:
    """Add the workflows that have rules, with the tenant. Returns whether these are all."""
    async for execution in client.list_workflows('ExecutionStatus = "Running"'):
        if len(sources) >= MOST_WORKFLOWS:
            return False
        if execution.workflow_type == TENANT_RULES:
            sources[execution.id] = execution.id.removeprefix(RULES_PREFIX)
            continue
        memo = await readable_memo(execution)
        if memo and memo.get(RULES_MEMO) and (may_see is None or await may_see(execution)):
            sources[execution.id] = None
    return True


async def _read(
    client: Client, workflow_id: str, tenant: str | None, limit: asyncio.Semaphore, all_rules: AllRules
) -> None:
    try:
        async with limit:
            rules: list[dict[str, Any]] = await query_run(client.get_workflow_handle(workflow_id), RULES_QUERY)
        source = {"scope": "run", "run": workflow_id} if tenant is None else {"scope": "tenant", "tenant": tenant}
        all_rules.rules += [ShownRule.model_validate({**each, **source}) for each in rules]
    except _UNREADABLE as error:
        if not (isinstance(error, RPCError) and error.status == RPCStatusCode.NOT_FOUND):
            all_rules.unread[workflow_id] = str(error)
