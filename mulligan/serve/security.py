"""Who may call the server, from where: tokens and their tenants, the Host and Origin headers, and the size of a body."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mulligan.client.web_origin import is_loopback, parse_origin
from mulligan.errors import DeclarationError
from mulligan.run_input import TENANT_BYTES, USER_CHARS
from mulligan.schema.url_parts import url_parts
from mulligan.serve.problems import Problem

USER_HEADER = "Mulligan-User"
"""For whom a request is sent, within the tenant of its token: who has the token speaks for all users of the tenant."""
_NAME = re.compile(r"[\w.@+-]+")
_TOKEN = re.compile(r"[\x21-\x7e]+")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::(\d{1,5}))?")
_EXAMPLE = "name:token or name:token:agent|agent, several separated by commas"


@dataclass(frozen=True)
class Caller:
    """Who sends a request.

    `name`: of its token; None: the server has no tokens. `user`: for whom it speaks, by its header; None: it has not said
    that. `agents`: the only agents it may use; None: all. `is_operator`:
    it sees the runs of all tenants.
    """

    name: str | None = None
    agents: frozenset[str] | None = None
    is_operator: bool = True
    user: str | None = None

    def may_use(self, agent: str | None) -> bool:
        """Whether it may start runs of an agent, and see them."""
        return self.agents is None or agent in self.agents

    def may_see(self, *, agent: str | None, tenant: str | None) -> bool:
        """Whether it may see and decide a run."""
        return self.is_operator or (tenant is not None and tenant == self.name and self.may_use(agent))


ANYBODY = Caller()
"""The caller of a server without tokens, which only this machine can reach."""


@dataclass(frozen=True)
class _Token:
    secret: bytes
    caller: Caller

    def __repr__(self) -> str:
        return f"_Token({self.caller.name!r})"


def parse_tokens(text: str) -> list[_Token]:
    """The tokens of `MULLIGAN_SERVE_TOKENS`.

    Raises:
        DeclarationError: an entry is invalid. The message has its number and its name, never its token.
    """
    tokens: list[_Token] = []
    for number, entry in enumerate((part.strip() for part in text.split(",") if part.strip()), 1):
        name, _, rest = entry.partition(":")
        secret, _, agents = rest.partition(":")
        where = f"entry {number} of MULLIGAN_SERVE_TOKENS"
        if not _NAME.fullmatch(name) or len(name.encode()) > TENANT_BYTES:
            raise DeclarationError(
                f"{where} has no valid name: at most {TENANT_BYTES} bytes of letters, digits and . _ @ + -; "
                f"write {_EXAMPLE}."
            )
        if not _TOKEN.fullmatch(secret):
            raise DeclarationError(f"{where} ({name}) has no token of visible ASCII characters; write {_EXAMPLE}.")
        if any(hmac.compare_digest(secret.encode(), other.secret) for other in tokens):
            raise DeclarationError(f"{where} ({name}) has the token of another entry; each needs its own.")
        names = frozenset(agent.strip() for agent in agents.split("|") if agent.strip())
        is_operator = "*" in names
        tokens.append(_Token(secret.encode(), Caller(name, None if is_operator or not names else names, is_operator)))
    return tokens


class Access:
    """Decides on a request by its headers, before anything else reads it."""

    def __init__(self, tokens: Sequence[_Token] = (), hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        """`hosts`: names in the Host header beside this machine's own; `*`: any. `origins`: of pages that may call.

        Raises:
            DeclarationError: one of them is invalid.
        """
        self._tokens = list(tokens)
        self._any_host = "*" in (hosts := list(hosts))
        self._hosts = {_parse_host(host) for host in hosts if host != "*"}
        self.origins = [parse_origin(origin, "the page", "https://shop.example.com") for origin in origins]

    @property
    def has_tokens(self) -> bool:
        """Whether callers need a token."""
        return bool(self._tokens)

    def secrets(self) -> list[tuple[bytes, Caller]]:
        """Each token with its caller, to sign and check cookies with."""
        return [(token.secret, token.caller) for token in self._tokens]

    def check_host(self, host: str) -> None:
        """Refuse a request for another host: with DNS rebinding, a foreign page would reach this server under its own.

        Raises:
            Problem: the host is not this server's.
        """
        match = _HOST.fullmatch(host.lower())
        name, port = (match[1], match[2] or "") if match else ("", "")
        if self._any_host or (match and ({(name, ""), (name, port)} & self._hosts or is_loopback(name))):
            return
        raise Problem(
            421, "foreign_host", f"This server is not {host[:200]!r}; start it with --allow-host for that name."
        )

    def check_origin(self, origin: str | None, host: str) -> None:
        """Refuse a page of another origin. A page of this server has its host as origin.

        Raises:
            Problem: the origin is not allowed.
        """
        if origin is None or origin in self.origins:
            return
        if url_parts(origin).netloc.lower() == host.lower() and origin.startswith(("http://", "https://")):
            return
        raise Problem(
            403, "foreign_origin", f"Pages of {origin[:200]!r} may not call this server; start it with --allow-origin."
        )

    def authenticate(self, authorization: str | None, user: str | None = None) -> Caller:
        """The caller with the token in an Authorization header. All tokens are compared, each in constant time.

        `user`: the header `Mulligan-User`, as the server decodes headers.

        Raises:
            Problem: there is no such token, or no such user can be.
        """
        caller = self._by_token(authorization) if self._tokens else ANYBODY
        return caller if user is None else replace(caller, user=_parse_user(user))

    def _by_token(self, authorization: str | None) -> Caller:
        scheme, _, secret = (authorization or "").partition(" ")
        given = secret.strip().encode("utf-8", "surrogatepass")
        found = [token.caller for token in self._tokens if hmac.compare_digest(given, token.secret)]
        if scheme.lower() != "bearer" or not found:
            sentence = "the token is not known" if authorization else "the request has no token"
            raise Problem(
                401,
                "unauthorized",
                f"Send a token as `Authorization: Bearer …`: {sentence}.",
                {"WWW-Authenticate": "Bearer"},
            )
        return found[0]


def _parse_user(header: str) -> str:
    try:
        user = header.encode("latin-1").decode().strip()
    except UnicodeError:
        raise Problem(400, "invalid_user", f"The header {USER_HEADER} is not UTF-8.") from None
    if not 0 < len(user) <= USER_CHARS:
        raise Problem(
            400,
            "invalid_user",
            f"The header {USER_HEADER} has {len(user):,} characters; it must have 1 to {USER_CHARS}.",
        )
    return user


def _parse_host(text: str) -> tuple[str, str]:
    match = _HOST.fullmatch(text.lower())
    if match is None:
        raise DeclarationError(f"--allow-host is {text!r}; give a host as in a URL, such as agents.example.com.")
    return match[1], match[2] or ""
