"""Approves calls that equal one that a person has approved, for this run or for its tenant (docs/approval-rules.md)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import JsonValue
from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from mulligan.errors import UpdateRefusedError
from mulligan.values import Decision, RuleUse
from mulligan.wire.approval_rules import (
    ADD_TENANT_RULE,
    FIND_TENANT_RULES,
    FORGET_RULE,
    RULE_BYTES,
    RULES_MEMO,
    RULES_QUERY,
    AddedRule,
    AddRule,
    FindRules,
    ForgetRule,
    FoundRules,
    Rule,
    rule_key,
)
from mulligan.wire.parse_update import check_size, parse_update
from mulligan.wire.times import iso
from mulligan.wire.tool_call import ToolOutcome
from mulligan.wire.updates import Decide
from mulligan.workflows import limits
from mulligan.workflows.feature import AfterDecision, Feature
from mulligan.workflows.people.decided_call import record_decision
from mulligan.workflows.people.person_wait import PersonWait
from mulligan.workflows.rules.rule_book import RuleBook
from mulligan.workflows.rules.tenant_rules import TenantRules, forget
from mulligan.workflows.scheduling import Schedule
from mulligan.workflows.step_call import StepCall

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent
    from mulligan.workflows.turn import Turn
    from mulligan.workflows.workflow_agents import WorkflowAgents

_ASK_TENANT = Schedule(
    timeout=limits.TENANT_RULES_TIMEOUT, total=limits.TENANT_RULES_TOTAL_TIMEOUT, waits=False, is_routed=False
)


WORKFLOWS = (TenantRules,)


class Rules(Feature):
    """The rules of one agent's run. Those of the tenant are asked for at each call, so that a deleted one ends at once.

    The calls of a step ask together: it costs one activity, and they begin to wait in the order of the calls.
    """

    schedules: ClassVar = {FIND_TENANT_RULES: _ASK_TENANT, ADD_TENANT_RULE: _ASK_TENANT}

    def __init__(self, agent: RunningAgent) -> None:
        super().__init__(agent)
        self.book = RuleBook(limits.RUN_RULES, limits.RUN_RULES_BYTES)
        self._asking: asyncio.Task[Mapping[str, RuleUse]] | None = None
        """The next request for the tenant's rules, which other calls may join."""
        self._keys: list[str] = []

    @classmethod
    def listen(cls, agents: WorkflowAgents) -> None:
        """Set the query for the rules of the workflow's agents, and the update that deletes one."""
        handlers = _RuleHandlers(agents)
        agents.handlers.answered.set_handler(FORGET_RULE, handlers.forget, _check_forget)
        if workflow.get_query_handler(RULES_QUERY) is None:
            workflow.set_query_handler(RULES_QUERY, handlers.rules)

    @classmethod
    def is_used(cls, turn: Turn) -> bool:
        """Whether calls of the turn may need an approval."""
        return turn.facts.guarded or any(each.asks for each in turn.facts.tools.values())

    async def before_call(self, call: StepCall) -> ToolOutcome | None:
        """Approve a call in place of a person if a rule says so."""
        is_asked = self.agent.waits.carried(PersonWait, call.call.id) is not None
        if call.waits_for is None or call.record.decision is not None or is_asked or self.agent.is_stopped:
            return None
        if call.waits_for != "approval":
            if self._asking is not None:  # an approval stands before this question
                await self._of_tenant(())
            return None
        since = workflow.time()
        rule = await self._find(call)
        if rule is None or self.agent.is_stopped:
            return None
        at = iso(workflow.time())
        call.record.decision = Decision(
            kind="approval", decision="approve", since=iso(since), at=at, by=rule.by, role=call.role, rule=rule
        )
        self.agent.conversation.event_log.decided(call.index)
        await record_decision(self.agent, call, step=self.agent.turn.result.steps, started=since)
        return None

    def deciding(self, wait: PersonWait, decision: Decide) -> AfterDecision | None:
        """Refuse to remember what cannot be a rule, before anything is decided. Then an approval becomes a rule."""
        if decision.remember is None:
            return None
        if decision.decision == "deny":
            raise UpdateRefusedError('"remember" is allowed with "approve" only: a denial is not a rule.')
        if decision.remember == "tenant" and self.agent.turn.input.tenant is None:
            raise UpdateRefusedError("The run has no tenant, so that a rule can count for this run only.")
        name = self.agent.name
        if decision.remember == "tenant" and decision.agents is not None and name not in decision.agents:
            raise UpdateRefusedError(
                f'A rule of the tenant for the agent "{name}" is for those who may use that agent, and you may not; '
                "approve the call without it, or for this run.",
                agent=name,
            )
        is_edited = decision.arguments is not None
        rule = self._rule(wait, decision.arguments, None, decision) if is_edited else self._rule_of(wait, decision)
        refusal = self.book.refusal(rule) if decision.remember == "run" else None
        check_size("arguments", rule.model_dump_json(include={"arguments"}), RULE_BYTES)
        if refusal is not None:
            raise UpdateRefusedError(refusal)
        return partial(self._remember, wait, decision)

    async def _remember(self, wait: PersonWait, decision: Decide) -> dict[str, Any]:
        """Make a rule of an approval: its name, or why there is none."""
        rule = self._rule_of(wait, decision)
        refused = self._add(rule) if decision.remember == "run" else await self._add_for_tenant(rule)
        return {"rule": rule.name} if refused is None else {"rule_refused": refused}

    def dump(self) -> list[Any] | None:
        """The run's own rules, as JSON."""
        return [rule.model_dump(mode="json") for rule in self.book.rules] or None

    def load(self, state: Any) -> None:
        """Continue with what `dump` returned."""
        for each in state:
            self.book.add(Rule.model_validate(each))

    def _rule_of(self, wait: PersonWait, decision: Decide) -> Rule:
        """The rule for the arguments with which a call is executed."""
        if wait.edited_arguments is None:
            return self._rule(wait, wait.arguments, wait.digest, decision)
        return self._rule(wait, wait.edited_arguments, wait.edited_digest, decision)

    def _rule(self, wait: PersonWait, arguments: JsonValue, digest: str | None, decision: Decide) -> Rule:
        is_guarded = any(each.call.id == wait.key and each.foreign_results is not None for each in self.agent.calls)
        rule = Rule(
            name="-",
            agent=self.agent.name,
            tool=wait.call.name,
            arguments=arguments,
            digest=digest,
            by=decision.by,
            at=iso(workflow.time()),
            role=wait.role,
            user=wait.user,
            untrusted=is_guarded,
        )
        is_of_run, tenant = decision.remember == "run", self.agent.turn.input.tenant
        place = f"run {workflow.info().workflow_id}" if is_of_run else f"tenant {tenant}"
        number = hashlib.sha256(f"{place}\x1f{self.agent.key}\x1f{rule.key}".encode()).hexdigest()[:8]
        return rule.model_copy(update={"name": f"{wait.call.name[:50]}-{number}"})

    def _add(self, rule: Rule) -> str | None:
        refused = self.book.add(rule)
        workflow.upsert_memo({RULES_MEMO: len(self.book.rules)})
        return refused

    async def _add_for_tenant(self, rule: Rule) -> str | None:
        try:
            added = await self.agent.activity(
                ADD_TENANT_RULE, AddRule(where=self.agent.context, rule=rule), AddedRule, summary=rule.name
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return f"The tenant's rules could not be changed ({error.cause or error})."
        return added.refused

    async def _find(self, call: StepCall) -> RuleUse | None:
        """The rule for a call, of the run or of its tenant."""
        digest, user = call.record.digests[0], self.agent.turn.input.user
        # Whoever knew that others may have written what the agent has read has approved the call without that as well.
        untrusted = (True,) if call.foreign_results is not None else (False, True)
        keys = [
            rule_key(self.agent.name, call.call.name, digest, role=call.role, user=user, untrusted=each)
            for each in untrusted
        ]
        if (rule := self.book.find(keys)) is not None:
            return rule.use
        return None if self.agent.turn.input.tenant is None else await self._of_tenant(keys)

    async def _of_tenant(self, keys: Sequence[str]) -> RuleUse | None:
        """The tenant's rule with one of the keys, once it is known which of the step's calls have one."""
        self._keys += keys
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_tenant())
        # What cancels one call does not end the request of the others.
        rules = await asyncio.shield(self._asking)
        return next((rules[key] for key in keys if key in rules), None)

    async def _ask_tenant(self) -> Mapping[str, RuleUse]:
        """The tenant's rules with the keys of all calls that have begun meanwhile. If nobody answers, people are asked."""
        request = FindRules(where=self.agent.context, keys=self._keys)
        self._asking, self._keys = None, []
        try:
            found = await self.agent.activity(FIND_TENANT_RULES, request, FoundRules, summary="rules")
        except ActivityError:
            return {}
        return found.rules


class _RuleHandlers:
    """The handlers of one workflow."""

    def __init__(self, agents: WorkflowAgents) -> None:
        self._agents = agents

    def rules(self) -> list[Rule]:
        """All rules of the workflow's agents."""
        return [rule for book in self._books() for rule in book.rules]

    async def forget(self, argument: Any = None) -> dict[str, Any]:
        """Delete a rule."""
        name = parse_update(ForgetRule, argument).name
        named = [book for book in self._books() if name in {each.name for each in book.rules}]
        forget(named[0] if named else RuleBook(0, 0), argument)
        workflow.upsert_memo({RULES_MEMO: len(self.rules())})
        return {"accepted": True}

    def _books(self) -> list[RuleBook]:
        return [agent.feature(Rules).book for agent in self._agents.all_agents()]


def _check_forget(argument: Any) -> None:
    parse_update(ForgetRule, argument)
