"""`MulliganTenantRules`: the rules of one tenant."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from mulligan.errors import UpdateRefusedError
from mulligan.wire.approval_rules import (
    ADD_RULE,
    FIND_QUERY,
    FORGET_RULE,
    RULES_QUERY,
    TENANT_RULES,
    AddedRule,
    ForgetRule,
    FoundRules,
    Rule,
)
from mulligan.wire.parse_update import parse_update
from mulligan.wire.read_payload import read_payloads
from mulligan.workflows import limits
from mulligan.workflows.rules.rule_book import RuleBook


@workflow.defn(name=TENANT_RULES, sandboxed=False)
class TenantRules:
    """Rules are added and deleted by updates. It ends when there are none: the next rule starts it again."""

    @workflow.init
    def __init__(self, start: RawValue) -> None:
        self._book, self._updates = new_tenant_book(), 0
        [carried] = read_payloads(workflow.payload_converter(), [start.payload], [list[Rule]])
        for rule in carried:
            self._book.add(rule)
        workflow.set_update_handler(ADD_RULE, self._add)
        workflow.set_update_handler(FORGET_RULE, self._forget)
        workflow.set_query_handler(RULES_QUERY, lambda: self._book.rules)
        workflow.set_query_handler(FIND_QUERY, self._find)

    @workflow.run
    async def run(self, start: RawValue) -> None:
        """Wait until there are no rules, or the history is long."""
        del start
        await workflow.wait_condition(
            lambda: workflow.all_handlers_finished() and (self._is_empty() or self._updates >= limits.RULE_UPDATES)
        )
        if not self._is_empty():
            workflow.continue_as_new(self._book.rules)

    def _is_empty(self) -> bool:
        return self._updates > 0 and not self._book.rules

    async def _add(self, argument: Any = None) -> AddedRule:
        self._updates += 1
        return AddedRule(refused=self._book.add(parse_update(Rule, argument)))

    async def _forget(self, argument: Any = None) -> dict[str, Any]:
        self._updates += 1
        forget(self._book, argument)
        return {"accepted": True}

    def _find(self, keys: Any = None) -> FoundRules:
        wanted = {*map(str, keys)} if isinstance(keys, list) else set()
        return FoundRules(rules={each.key: each.use for each in self._book.rules if each.key in wanted})


def new_tenant_book() -> RuleBook:
    """A tenant's rules: none yet."""
    return RuleBook(limits.TENANT_RULES, limits.TENANT_RULES_BYTES)


def forget(book: RuleBook, argument: Any) -> None:
    """Delete the rule that an update names.

    Raises:
        UpdateRefusedError: there is none of that name.
    """
    name = parse_update(ForgetRule, argument).name
    if not book.delete(name):
        known = ", ".join(f'"{each.name}"' for each in book.rules[:10]) or "none"
        raise UpdateRefusedError(f'There is no rule "{name[:80]}"; there are: {known}.')
