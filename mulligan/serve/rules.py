"""`/api/rules`: the rules of approval of the caller's tenant, and of a run that the caller sees."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from mulligan.serve.api_answers import Accepted
from mulligan.serve.http_protocol import Calling, Protocol, Serving, problems, refuse_by_rfc_9457
from mulligan.serve.json_body import JsonRoute
from mulligan.wire.approval_rules import ShownRule

PREFIX = "/api/rules"
router = APIRouter(prefix=PREFIX, tags=["rules"], route_class=JsonRoute)
Run = Annotated[
    str | None, Query(max_length=1_000, description="The rules of this open run, in place of the tenant's.")
]
Tenant = Annotated[str | None, Query(max_length=64, description="For operators: of this tenant.")]


class RuleList(BaseModel):
    """Rules, the oldest first. `unread`: why workflows that may have some did not answer, by their ids. `encrypted`: how
    many open runs may have some, and cannot be decrypted. `is_complete`: whether all tenants and open runs were looked at.
    """

    rules: list[ShownRule]
    unread: dict[str, str] = {}
    encrypted: int = 0
    is_complete: bool = True


@router.get("", response_model=RuleList, response_model_by_alias=True, responses=problems(404))
async def list_rules(runs: Serving, caller: Calling, run: Run = None, tenant: Tenant = None) -> RuleList:
    """List the rules of the caller's tenant, or of a run. For operators, of all tenants and open runs."""
    all_rules = await runs.rules(caller, run_id=run, tenant=tenant)
    return RuleList(
        rules=all_rules.rules,
        unread=all_rules.unread,
        encrypted=all_rules.encrypted,
        is_complete=all_rules.is_complete,
    )


@router.delete("/{name:path}", responses=problems(404, 409))
async def delete_rule(name: str, runs: Serving, caller: Calling, run: Run = None, tenant: Tenant = None) -> Accepted:
    """Delete a rule. It approves no call that begins from then on."""
    await runs.delete_rule(caller, name, run_id=run, tenant=tenant)
    return Accepted()


PROTOCOL = Protocol(prefix=PREFIX, router=router, refuse=refuse_by_rfc_9457)
