"""The rules of approval of the caller's tenant, and of a run that the caller sees: `/api/rules`, and in the console."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request
from markupsafe import Markup
from starlette.responses import Response
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from mulligan.client.rules import RuleList, delete_rule, read_rules
from mulligan.features.feature_parts import FeaturePages
from mulligan.serve.api_answers import Accepted
from mulligan.serve.caller import Caller
from mulligan.serve.console.console_forms import refusal_of, to_decide
from mulligan.serve.console.rendering import render
from mulligan.serve.console.sessions import Session
from mulligan.serve.console.signed_in import PREFIX as CONSOLE
from mulligan.serve.console.signed_in import Form, Viewing
from mulligan.serve.http_protocol import Calling, Protocol, Serving, problems, refuse_by_rfc_9457
from mulligan.serve.json_body import JsonRoute
from mulligan.serve.problems import KNOWN_ERRORS, Problem
from mulligan.serve.runs import Runs

PREFIX = "/api/rules"
SECONDS_FOR_RULES = 5.0
"""How long the page of what waits is delayed by workers that do not answer."""
router = APIRouter(prefix=PREFIX, tags=["rules"], route_class=JsonRoute)
_pages = APIRouter(prefix=f"{CONSOLE}/rules", include_in_schema=False)
Run = Annotated[
    str | None, Query(max_length=1_000, description="The rules of this open run, in place of the tenant's.")
]
Tenant = Annotated[str | None, Query(max_length=64, description="For operators: of this tenant.")]


@router.get("", response_model=RuleList, response_model_by_alias=True, responses=problems(404))
async def list_rules(runs: Serving, caller: Calling, run: Run = None, tenant: Tenant = None) -> RuleList:
    """List the rules of the caller's tenant, or of a run. For operators, of all tenants and open runs."""
    return await _seen_by(caller, runs, run, tenant)


@router.delete("/{name:path}", responses=problems(404, 409))
async def delete(name: str, runs: Serving, caller: Calling, run: Run = None, tenant: Tenant = None) -> Accepted:
    """Delete a rule. It approves no call that begins from then on."""
    await _delete(caller, runs, name, run, tenant)
    return Accepted()


@_pages.post("/delete")
async def send_delete(request: Request, runs: Serving, session: Viewing, form: Form) -> Response:
    """Delete a rule, and show what waits."""
    back, name = {"run": form["only"]} if form.get("only") else {}, form.get("name", "")
    try:
        await _delete(session.caller, runs, name, form.get("run") or None, form.get("tenant") or None)
    except KNOWN_ERRORS as error:
        return to_decide(request, back, problem=refusal_of(error).detail)
    return to_decide(request, back, done=f"The rule {name} was deleted.")


async def show_below(request: Request, runs: Runs, session: Session, run_id: str) -> Markup:
    """The rules by which calls are approved without a person, each with a button that deletes it; `run_id`: of that run."""
    rules = None
    with suppress(Problem, RPCError, TimeoutError):
        async with asyncio.timeout(SECONDS_FOR_RULES):
            rules = await _seen_by(session.caller, runs, run_id or None)
    root = request.scope.get("root_path", "")
    return Markup(render("_rules.html", root, session=session, rules=rules, run=run_id))  # noqa: S704 - a template's


async def _seen_by(caller: Caller, runs: Runs, run_id: str | None, tenant: str | None = None) -> RuleList:
    """The rules of a run, or else of the caller's tenant; for operators, of another one, or of everybody."""
    if tenant not in (None, caller.tenant) and not caller.operator:
        raise Problem(
            403, "foreign_tenant", f'"tenant" is another one than this caller\'s, which is {caller.tenant!r}.'
        )
    if run_id is not None:
        described = await runs.describe(caller, run_id)
        if described.status != WorkflowExecutionStatus.RUNNING:
            return RuleList()
    elif not caller.operator:
        if caller.tenant is None:
            return RuleList()
        tenant = caller.tenant
    seen = await read_rules(runs.client, tenant=None if run_id else tenant, run_id=run_id)
    # Whoever sees a run has a part in all that its agents do; a tenant's rule is for those who may use its agent.
    seen.rules = [rule for rule in seen.rules if rule.scope == "run" or caller.may_use(rule.agent)]
    return seen


async def _delete(caller: Caller, runs: Runs, name: str, run_id: str | None, tenant: str | None) -> None:
    """Delete a rule that the caller sees.

    Raises:
        Problem: there is none, or several; or nobody answers who may have it.
    """
    seen = await _seen_by(caller, runs, run_id, tenant)
    named = [rule for rule in seen.rules if rule.name == name]
    if not named and seen.unread:
        unread = ", ".join([*seen.unread][:10])
        raise Problem(
            503, "no_worker", f"No rule {name[:80]!r} was found, but {unread} may have rules, and no worker answers."
        )
    if not named:
        more = " Not all could be looked at: name the run, or the tenant." if seen.may_have_others else ""
        raise Problem(404, "rule_not_found", f"There is no rule {name[:80]!r}, or this caller may not see it.{more}")
    if len(named) > 1:
        raise Problem(409, "several_rules", f"Several have a rule {name[:80]!r}; name the run, or the tenant.")
    await delete_rule(runs.client, named[0], caller.name or None)


PAGES = FeaturePages(router=_pages, below_waiting=show_below)
PROTOCOL = Protocol(prefix=PREFIX, router=router, refuse=refuse_by_rfc_9457)
