"""Reads and deletes the rules of approval of runs and tenants."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client.find_runs import readable_memo
from mulligan.client.read_run import UNDECODABLE, query_run
from mulligan.client.send_update import RunEndedError, send_update
from mulligan.client.waiting_calls import MOST_OPEN_RUNS, PARALLEL_QUERIES, SECONDS_FOR_RUN
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
_UNREADABLE = (RPCError, WorkflowQueryFailedError, *UNDECODABLE)


class RuleList(BaseModel):
    """Rules, the oldest first. `unread`: why workflows that may have some did not answer, by their ids. `encrypted`: how
    many open runs may have some, and cannot be decrypted. `complete`: whether all tenants and open runs were looked at.
    """

    rules: list[ShownRule] = []
    unread: dict[str, str] = {}
    encrypted: int = 0
    complete: bool = True

    @property
    def may_have_others(self) -> bool:
        """Whether there may be rules that could not be read."""
        return bool(self.unread or self.encrypted or not self.complete)


async def read_rules(client: Client, *, tenant: str | None = None, run_id: str | None = None) -> RuleList:
    """The rules of a tenant, of an open run, or of both; with neither, of all tenants and all open runs.

    Raises:
        RPCError: Temporal could not list the workflows.
    """
    all_rules = RuleList()
    sources: dict[str, str | None] = {} if tenant is None else {rules_id(tenant): tenant}
    if run_id is not None:
        sources[run_id] = None
    seconds = None
    if not sources:
        seconds = SECONDS_FOR_RUN
        await _find_tenants(client, sources, all_rules)
        await _find_runs(client, sources, all_rules)
    limit = asyncio.Semaphore(PARALLEL_QUERIES)

    async def read(workflow_id: str, of: str | None) -> None:
        try:
            async with limit, asyncio.timeout(seconds):
                all_rules.rules += await _read(client, workflow_id, of)
        except TimeoutError:
            all_rules.unread[workflow_id] = f"No worker has answered within {seconds:g} s."
        except _UNREADABLE as error:
            all_rules.unread[workflow_id] = str(error)

    await asyncio.gather(*(read(each, of) for each, of in sources.items()))
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


async def _find_tenants(client: Client, sources: dict[str, str | None], all_rules: RuleList) -> None:
    """Add the workflows of tenants' rules, with the tenant."""
    async for execution in client.list_workflows(f'ExecutionStatus = "Running" AND WorkflowType = "{TENANT_RULES}"'):
        if len(sources) >= MOST_WORKFLOWS:
            all_rules.complete = False
            return
        sources[execution.id] = execution.id.removeprefix(RULES_PREFIX)


async def _find_runs(client: Client, sources: dict[str, str | None], all_rules: RuleList) -> None:
    """Add the open runs whose memo says that they have rules."""
    seen = 0
    async for execution in client.list_workflows(f'ExecutionStatus = "Running" AND WorkflowType != "{TENANT_RULES}"'):
        seen += 1
        if seen > MOST_OPEN_RUNS or len(sources) >= MOST_WORKFLOWS:
            all_rules.complete = False
            return
        memo = await readable_memo(execution)
        if memo is None:
            all_rules.encrypted += 1
        elif memo.get(RULES_MEMO):
            sources[execution.id] = None


async def _read(client: Client, workflow_id: str, tenant: str | None) -> list[ShownRule]:
    """The rules of a workflow; none if it does not exist: a tenant's does when there is a rule."""
    try:
        rules: list[dict[str, Any]] = await query_run(client.get_workflow_handle(workflow_id), RULES_QUERY)
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return []
    source = {"scope": "run", "run": workflow_id} if tenant is None else {"scope": "tenant", "tenant": tenant}
    return [ShownRule.model_validate({**each, **source}, extra="ignore") for each in rules]
