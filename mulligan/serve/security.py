"""Who may call the server, from where: tokens and their tenants, the Host and Origin headers, and the size of a body."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from starlette.requests import HTTPConnection

from mulligan.client.web_origin import is_loopback, parse_origin
from mulligan.errors import DeclarationError
from mulligan.run_input import TENANT_BYTES, USER_CHARS
from mulligan.schema.url_parts import url_parts
from mulligan.serve.caller import ANYBODY, Caller
from mulligan.serve.own_sign_in import OwnSignIn
from mulligan.serve.problems import Problem

USER_HEADER = "Mulligan-User"
"""The customer whose request it is, within the tenant of its token: who has the token speaks for all users of the tenant."""
TRUSTED_HEADER = "Mulligan-Trusted"
"""`true`: the request is the token's own, with all its rights, and the user only the person for whom it is sent."""
_NAME = re.compile(r"[\w.@+-]+")
_TOKEN = re.compile(r"[\x21-\x7e]+")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::(\d{1,5}))?")
_EXAMPLE = "name:token, name:token:agent|agent or name:token:agent|agent:role|role, several separated by commas"


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
        secret, _, rest = rest.partition(":")
        agents, _, roles = rest.partition(":")
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
        names = _parse_names(agents, f"{where} ({name})", "agents")
        is_operator = "*" in names
        caller = Caller(
            name,
            agents=None if is_operator or not names else names,
            roles=_parse_names(roles, f"{where} ({name})", "roles"),
            operator=is_operator,
            trusted=True,
        )
        if invalid := [role for role in caller.roles if not _NAME.fullmatch(role)]:
            raise DeclarationError(
                f"{where} ({name}) has the role {invalid[0][:80]!r}; a role has letters, digits and . _ @ + -."
            )
        tokens.append(_Token(secret.encode(), caller))
    return tokens


def _parse_names(text: str, where: str, what: str) -> list[str]:
    """A list separated by `|`; empty if nothing is given. `|` alone is refused: no agents would mean all."""
    names = [name.strip() for name in text.split("|")] if text.strip() else []
    if not all(names):
        raise DeclarationError(f"{where} has an empty name among its {what}; write {_EXAMPLE}.")
    return names


class Access:
    """Decides on a request by its headers, before anything else reads it."""

    def __init__(
        self,
        tokens: Sequence[_Token] = (),
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        sign_in: OwnSignIn | None = None,
    ) -> None:
        """`hosts`: names in the Host header beside this machine's own; `*`: any. `origins`: of pages that may call.
        `sign_in`: in place of tokens.

        Raises:
            DeclarationError: one of them is invalid, or there are tokens and a sign-in.
        """
        if tokens and sign_in is not None:
            raise DeclarationError(
                "authenticate is given, and tokens too (the argument, or MULLIGAN_SERVE_TOKENS): only one of them can say "
                'who may call. Leave one out; with tokens="" the variable is ignored.'
            )
        self._tokens, self._sign_in = list(tokens), sign_in
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

    async def authenticate(self, connection: HTTPConnection) -> Caller:
        """Who sends a request: by the own sign-in, which alone says who the user is; otherwise by the token.

        Raises:
            Problem: nobody knows who does, or no such user can be.
        """
        if self._sign_in is not None:
            return await self._sign_in.caller(connection)
        caller = self.by_token(connection.headers.get("authorization")) if self._tokens else ANYBODY
        return for_user(caller, connection)

    def by_token(self, authorization: str | None) -> Caller:
        """The caller with the token in an Authorization header. All tokens are compared, each in constant time.

        Raises:
            Problem: there is no such token.
        """
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


def for_user(caller: Caller, connection: HTTPConnection) -> Caller:
    """Who sends a request with the token of `caller`: the customer that its header names, if it has one.

    Raises:
        Problem: no such user can be.
    """
    users = connection.headers.getlist(USER_HEADER)
    if not users:
        return caller
    if len(users) > 1:  # one may be a page's own, which a proxy has passed on
        raise Problem(400, "invalid_user", f"The header {USER_HEADER} is sent {len(users)} times; send it once.")
    user = _parse_user(users[0])
    is_trusted = [each.strip().lower() for each in connection.headers.getlist(TRUSTED_HEADER)] == ["true"]
    return replace(caller, user=user) if is_trusted else caller.as_customer(user)


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
