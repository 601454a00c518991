"""The activities of rules: they ask the workflow of the run's tenant, or start it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import WithStartWorkflowOperation, WorkflowQueryRejectedError
from temporalio.common import QueryRejectCondition, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from mulligan.activities.services import Services
from mulligan.client.worker_versions import unpinned
from mulligan.wire.approval_rules import (
    ADD_RULE,
    ADD_TENANT_RULE,
    FIND_QUERY,
    FIND_TENANT_RULES,
    TENANT_RULES,
    AddedRule,
    AddRule,
    FindRules,
    FoundRules,
    rules_id,
)

RPC_TIMEOUT = timedelta(seconds=4)


def activities(services: Services) -> list[Callable[..., Any]]:
    """The activities of a worker."""
    del services
    return [find_tenant_rules, add_tenant_rule]


@activity.defn(name=FIND_TENANT_RULES)
async def find_tenant_rules(request: FindRules) -> FoundRules:
    """Find the rules of the run's tenant for calls of a step. The answer of a workflow that has ended does not count.

    Raises:
        RPCError, WorkflowQueryFailedError: no worker says whether there are any.
    """
    handle = activity.client().get_workflow_handle(rules_id(request.where.tenant or ""))
    try:
        answer: FoundRules = await handle.query(
            FIND_QUERY,
            request.keys,
            result_type=FoundRules,
            reject_condition=QueryRejectCondition.NOT_OPEN,
            rpc_timeout=RPC_TIMEOUT,
        )
    except WorkflowQueryRejectedError:
        return FoundRules()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return FoundRules()
        raise
    return answer


@activity.defn(name=ADD_TENANT_RULE)
async def add_tenant_rule(request: AddRule) -> AddedRule:
    """Add a rule to those of the run's tenant, whose workflow starts with the first one.

    Raises:
        RPCError, WorkflowUpdateFailedError: it was not added.
    """
    tenant = request.where.tenant or ""
    start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        TENANT_RULES,
        [],
        id=rules_id(tenant),
        task_queue=activity.info().task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        versioning_override=unpinned(),
        static_summary=f"rules of approval of tenant {tenant}",
    )
    added: AddedRule = await activity.client().execute_update_with_start_workflow(
        ADD_RULE, request.rule, start_workflow_operation=start, result_type=AddedRule, rpc_timeout=RPC_TIMEOUT
    )
    return added
