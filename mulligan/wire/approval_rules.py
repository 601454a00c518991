"""Rules of approval: decisions of people that count for equal calls as well, of one run or of a tenant.

All of it is in history: fields may be added if they are optional; none may be renamed or given another meaning.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from mulligan.once import call_digest
from mulligan.schema.argument_digest import argument_digest
from mulligan.schema.optional_field import optional_field
from mulligan.values import RuleUse
from mulligan.wire.run_context import RunContext
from mulligan.wire.updates import Key, Short

TENANT_RULES = "MulliganTenantRules"
"""Temporal's workflow type."""
RULES_PREFIX = "mulligan-rules-"
"""How the workflow ids of all tenants' rules begin."""
RULES_QUERY, FIND_QUERY = "rules", "find_rules"
"""Temporal's names of the queries: all rules (of a run, and of a tenant), and the rules with given keys."""
ADD_RULE, FORGET_RULE = "add_rule", "forget_rule"
"""Temporal's names of the updates. A run has the second one as well."""
FIND_TENANT_RULES, ADD_TENANT_RULE = "find_tenant_rules", "add_tenant_rule"
"""Temporal's activity types."""
RULES_MEMO = "mulligan_rules"
"""The key, in the memo of a run, of the number of its own rules."""
RULE_BYTES = 10_000
"""UTF-8 bytes of the arguments of a rule as JSON: what a person sees at once."""


class Rule(BaseModel):
    """Approves calls of an agent's tool whose arguments are equal. `name`: unique in its run, or its tenant.

    `digest`: that of the arguments' normal form, where it is not that of their JSON.

    `by` and `at`: who approved the first call, and when (ISO 8601, UTC). `role`: that a person needs for such calls.
    `user`: for whom the first call's run works, and the calls' must; None: for nobody that is named.
    `untrusted`: whether whoever approved it knew that the agent had read what others may have written. Without that, the
    rule does not count for such calls.
    """

    model_config = ConfigDict(extra="forbid")

    name: Key
    agent: Key
    tool: Key
    arguments: JsonValue
    digest: Short | None = optional_field()
    by: Short | None = optional_field()
    at: Key
    role: Short | None = optional_field()
    user: Short | None = optional_field()
    untrusted: bool = optional_field(False)

    @property
    def use(self) -> RuleUse:
        """What the decision on a call says that it approves."""
        return RuleUse(name=self.name, by=self.by, at=self.at)

    @property
    def key(self) -> str:
        """What calls must have in common with it."""
        digest = self.digest or argument_digest(self.arguments)
        return rule_key(self.agent, self.tool, digest, role=self.role, user=self.user, untrusted=self.untrusted)


class FindRules(BaseModel):
    """Input of `find_tenant_rules`: find the rules of the run's tenant that have these `keys`."""

    where: RunContext
    keys: list[str]


class FoundRules(BaseModel):
    """Result of `find_tenant_rules`, and of the query. `rules`: by their keys."""

    rules: dict[str, RuleUse] = optional_field({})


class AddRule(BaseModel):
    """Input of `add_tenant_rule`: add a `rule` to those of the run's tenant."""

    where: RunContext
    rule: Rule


class AddedRule(BaseModel):
    """Result of `add_tenant_rule`, and of the update. `refused`: why it was not added."""

    refused: str | None = optional_field()


class ForgetRule(BaseModel):
    """The update `forget_rule`."""

    model_config = ConfigDict(extra="forbid")

    name: Key
    by: Short | None = None


class ShownRule(Rule):
    """A rule as people see it. `scope`: where it counts. `run`: the run's id; `tenant`: the tenant."""

    scope: Annotated[Literal["run", "tenant"] | str, Field(serialization_alias="for")]
    run: str | None = optional_field()
    tenant: str | None = optional_field()


def rule_key(agent: str, tool: str, digest: str, *, role: str | None, user: str | None, untrusted: bool) -> str:
    """What a rule and its calls have in common. `digest`: of the arguments' normal form."""
    return call_digest(json.dumps([agent, tool, role, user, untrusted]), digest)


def rules_id(tenant: str) -> str:
    """The workflow id of a tenant's rules."""
    return f"{RULES_PREFIX}{tenant}"
