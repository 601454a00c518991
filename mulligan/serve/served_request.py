"""The request that is being served: its place among the watchers, and the run that it has started."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial

from starlette.types import Scope

from mulligan.serve.problems import Problem
from mulligan.serve.tenant_shares import TenantShares

_SCOPE = "mulligan.request"
IGNORED = "mulligan-ignored"
"""The header, and the key in the metadata of a run, that name what a request asked for in vain."""
MOST_NAMES, MOST_NAME_CHARS = 30, 64
"""Names of ignored fields that a response has. Metadata of OpenAI's has at most 512 characters in a value."""
MOST_CHARS = 500
_UNUSUAL = re.compile(r"[^A-Za-z0-9_.\[\]-]")


@dataclass
class ServedRequest:
    """A request from its beginning until its response has been sent."""

    started: str | None = None
    """The id of the run that it has started, or that an equal request before it has."""
    ignored_names: list[str] = field(default_factory=list)
    """Its fields that an agent decides by itself, or that are not for this caller."""
    give_back: Callable[[], None] | None = None
    """Gives its place among the watchers back; None: it has none."""

    @property
    def ignored(self) -> str:
        """The names of the fields that are ignored, joined by commas; "": all are read."""
        return _joined(self.ignored_names)

    def ignore(self, names: Sequence[str], *, strict: bool) -> str:
        """Note that fields of the request are ignored. Returns all that are, joined by commas.

        Raises:
            Problem: nothing may be ignored (`strict`).
        """
        if names and strict:
            raise Problem(
                400, "invalid_value", f'"{_clean(names[0])}" is refused: the agent decides about it, or it is not for '
                "this caller, and this server runs with --strict. Leave it out.",
            )  # fmt: skip
        self.ignored_names = list(dict.fromkeys([*self.ignored_names, *names]))
        return self.ignored

    @staticmethod
    def current() -> ServedRequest:
        """The request that is served by this task, or by the task that started it."""
        return _CURRENT.get()

    @staticmethod
    def of(scope: Scope) -> ServedRequest:
        """The request with an ASGI scope, also where its task has already left `serving`."""
        request: ServedRequest = scope.get(_SCOPE) or ServedRequest()
        return request

    @staticmethod
    @contextmanager
    def serving(scope: Scope) -> Iterator[None]:
        """Serve a request. However it ends, its place is free afterwards."""
        request = scope[_SCOPE] = ServedRequest()
        token = _CURRENT.set(request)
        try:
            yield
        finally:
            _CURRENT.reset(token)
            if request.give_back is not None:
                request.give_back()


def _clean(name: str) -> str:
    return _UNUSUAL.sub("?", name)[:MOST_NAME_CHARS]


def _joined(names: Sequence[str]) -> str:
    clean = [_clean(name) for name in names[:MOST_NAMES]]
    more = len(names) - MOST_NAMES
    text = ", ".join(clean) + (f", and {more} more" if more > 0 else "")
    return text[:MOST_CHARS]


_CURRENT: ContextVar[ServedRequest] = ContextVar(_SCOPE)


class WatcherPlaces:
    """How many requests may watch a run at the same time, in this process: all, and those of one tenant."""

    def __init__(self, most: int) -> None:
        """`most`: of all tenants. One tenant has half of them at most."""
        self._shares = TenantShares(most)

    def take(self, tenant: str | None) -> None:
        """Take a place for the request that is being served, until its end. It needs one, however many runs it watches.

        `tenant`: None for a server without tokens, where only the whole number counts.

        Raises:
            Problem: all places are taken, or those that the tenant may have.
        """
        request = ServedRequest.current()
        if request.give_back is not None:
            return
        match self._shares.take(tenant):
            case "all":
                raise _full(f"This server has {self._shares.most:,} open streams, its limit")
            case "tenant":
                most = self._shares.most_of_tenant
                raise _full(f"{tenant!r} has {most:,} open streams here, the most that one tenant may have")
        request.give_back = partial(self._shares.give_back, tenant)


def _full(sentence: str) -> Problem:
    return Problem(503, "too_many_watchers", f"{sentence}. Close one, or try again.")
