"""Who sends a request, and what they may do and see."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from mulligan.run_input import TENANT_BYTES, USER_CHARS

NAME_CHARS = 256
Kind = Literal["customer", "trusted", "operator"]
"""From the least rights to the most. What each kind may send, and which routes it may use: caller_rights.py."""


class _SameAsName(str):
    """The default of `tenant` and `user`. None is refused there: a claim that is missing in somebody's token would become
    the tenant with their name, which can be another customer's.
    """


_SAME_AS_NAME = _SameAsName("name")


@dataclass(frozen=True)
class Caller:
    """Who sends a request: a customer, unless they are `trusted` or an `operator`.

    A customer reaches the runs of their own `user` in their tenant, and of what they send only words count.

    Args:
        name: who decides and answers: the `by` of decisions.
        tenant: the boundary of what they see: runs of their tenant, and no others. At most 64 bytes.
        user: for whom runs work within the tenant: `ctx.user` of tools. At most 128 characters.
        agents: the only agents that they may use; None: all.
        roles: what they may decide where a role is needed.
        operator: whether they see and decide the runs of all tenants.
        trusted: whether they see the runs of all users of their tenant, and may choose models and limits of runs: a backend,
            or an employee.
        metadata: of the runs that they start (`ctx.metadata`): what the application knows of them, as texts. Customers are
            not shown it. Keep it the same from request to request: a request with another metadata is another request.

    Raises:
        ValueError: a field is invalid.
    """

    name: str
    tenant: str | None = _SAME_AS_NAME
    user: str | None = _SAME_AS_NAME
    agents: Collection[str] | None = None
    roles: Collection[str] = ()
    operator: bool = False
    trusted: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Fill in and check the fields."""
        for name in ("tenant", "user"):
            if getattr(self, name) is _SAME_AS_NAME:
                object.__setattr__(self, name, self.name)
        _check_text("name", self.name, NAME_CHARS)
        _check_text("tenant", self.tenant, TENANT_BYTES, in_bytes=True)
        _check_text("user", self.user, USER_CHARS)
        for name, value in (("operator", self.operator), ("trusted", self.trusted)):
            if not isinstance(value, bool):  # the text "false" would be true
                raise ValueError(f"Caller({name}=…) has the type {type(value).__name__}; give True or False.")
        if self.agents is not None:
            object.__setattr__(self, "agents", _names("agents", self.agents))
        object.__setattr__(self, "roles", _names("roles", self.roles))
        object.__setattr__(self, "metadata", _texts("metadata", self.metadata))

    @property
    def kind(self) -> Kind:
        """What they are."""
        return "operator" if self.operator else "trusted" if self.trusted else "customer"

    @property
    def is_customer(self) -> bool:
        """Whether only words count of what they send, and only runs of their own are theirs."""
        return self.kind == "customer"

    @property
    def scope(self) -> tuple[str | None, ...]:
        """Among whose requests those with the same key are the same: a customer's own, otherwise those of the tenant."""
        return (self.tenant, self.user, "customer") if self.is_customer else (self.tenant,)

    @property
    def other_user(self) -> str | None:
        """The user for whom runs work, whatever else is asked for. None: somebody who is no customer and speaks for nobody
        else: they keep the user of a run, and an operator may name one.
        """
        return None if not self.is_customer and self.user == self.name else self.user

    def as_customer(self, user: str) -> Caller:
        """The customer for whom this caller sends a request: of the same tenant, with the same agents, and no rights."""
        return replace(self, name=self.name or user, user=user, roles=(), operator=False, trusted=False)

    def may_use(self, agent: str | None) -> bool:
        """Whether they may start runs of an agent, and see them."""
        return self.agents is None or agent in self.agents

    def may_see(self, *, agent: str | None, tenant: str | None, user: str | None) -> bool:
        """Whether they may see and reach a run, by its agent, tenant and user."""
        if self.operator:
            return True
        if self.is_customer:  # where nobody has tokens, runs and customers have no tenant
            return user is not None and (tenant, user) == (self.tenant, self.user) and self.may_use(agent)
        return tenant is not None and tenant == self.tenant and self.may_use(agent)


class _Anybody(Caller):
    """Nobody knows who that is. Only the server itself makes such a caller."""

    def __post_init__(self) -> None:
        """Leave out the checks: there is no name and no tenant."""


ANYBODY = _Anybody("", None, None, operator=True, trusted=True)
"""The caller of a server that has neither tokens nor a sign-in of its own, which only this machine can reach."""


def _check_text(field: str, value: Any, most: int, *, in_bytes: bool = False) -> None:
    """Raise ValueError if a field is no text of a valid length. The sentence does not quote it: it goes to a log."""
    if not isinstance(value, str):
        raise ValueError(f"Caller({field}=…) has the type {type(value).__name__}; give a text.")
    encoded = value.encode()  # half of a surrogate pair: UnicodeEncodeError is a ValueError
    size = len(encoded if in_bytes else value)
    if not value.strip() or size > most:
        unit = "bytes" if in_bytes else "characters"
        raise ValueError(f"Caller({field}=…) has {size:,} {unit}; give 1 to {most}, and not only spaces.")


def _names(field: str, values: Any) -> frozenset[str]:
    """A list of names. A text is refused: each of its letters would be a name."""
    if not isinstance(values, list | tuple | set | frozenset) or not all(isinstance(each, str) for each in values):
        raise ValueError(
            f"Caller({field}=…) has the type {type(values).__name__}; it must be a list or a set of texts."
        )
    return frozenset(values)


def _texts(field: str, values: Any) -> Mapping[str, str]:
    """A mapping of texts to texts, which nobody can change. The sentence quotes nothing of it: it goes to a log."""
    if not isinstance(values, Mapping) or not all(isinstance(each, str) for pair in values.items() for each in pair):
        kind = type(values).__name__
        raise ValueError(
            f"Caller({field}=…) has the type {kind}; it must be a mapping whose names and values are texts."
        )
    for each in (each for pair in values.items() for each in pair):
        each.encode()  # half of a surrogate pair: UnicodeEncodeError is a ValueError
    return MappingProxyType(dict(values))
