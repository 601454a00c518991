"""Who sends a request, and what they may do and see."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from mulligan.run_input import TENANT_BYTES, USER_CHARS

NAME_CHARS = 256


class _SameAsName(str):
    """The default of `tenant` and `user`. None is refused there: a claim that is missing in somebody's token would become
    the tenant with their name, which can be another customer's.
    """


_SAME_AS_NAME = _SameAsName("name")


@dataclass(frozen=True)
class Caller:
    """Who sends a request.

    Args:
        name: who decides and answers: the `by` of decisions.
        tenant: the boundary of what they see: runs of their tenant, and no others. At most 64 bytes.
        user: for whom runs work within the tenant: `ctx.user` of tools. At most 128 characters.
        agents: the only agents that they may use; None: all.
        roles: what they may decide where a role is needed.
        operator: whether they see and decide the runs of all tenants.

    Raises:
        ValueError: a field is invalid.
    """

    name: str
    tenant: str | None = _SAME_AS_NAME
    user: str | None = _SAME_AS_NAME
    agents: Collection[str] | None = None
    roles: Collection[str] = ()
    operator: bool = False

    def __post_init__(self) -> None:
        """Fill in and check the fields."""
        for field in ("tenant", "user"):
            if getattr(self, field) is _SAME_AS_NAME:
                object.__setattr__(self, field, self.name)
        _check_text("name", self.name, NAME_CHARS)
        _check_text("tenant", self.tenant, TENANT_BYTES, in_bytes=True)
        _check_text("user", self.user, USER_CHARS)
        if not isinstance(self.operator, bool):  # the text "false" would be true
            raise ValueError(f"Caller(operator=…) has the type {type(self.operator).__name__}; give True or False.")
        if self.agents is not None:
            object.__setattr__(self, "agents", _names("agents", self.agents))
        object.__setattr__(self, "roles", _names("roles", self.roles))

    @property
    def other_user(self) -> str | None:
        """The user for whom runs work, whatever else is asked for. None: an operator who speaks for nobody else, and so may
        name a user, or keep that of a run.
        """
        return None if self.operator and self.user == self.name else self.user

    def may_use(self, agent: str | None) -> bool:
        """Whether they may start runs of an agent, and see them."""
        return self.agents is None or agent in self.agents

    def may_see(self, *, agent: str | None, tenant: str | None) -> bool:
        """Whether they may see and decide a run."""
        return self.operator or (tenant is not None and tenant == self.tenant and self.may_use(agent))


class _Anybody(Caller):
    """Nobody knows who that is. Only the server itself makes such a caller."""

    def __post_init__(self) -> None:
        """Leave out the checks: there is no name and no tenant."""


ANYBODY = _Anybody("", None, None, operator=True)
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
        raise ValueError(f"Caller({field}=…) must be a list, a tuple or a set of texts.")
    return frozenset(values)
