"""How a worker proves to an MCP server at a URL who it is, by OAuth: `OAuthClientCredentials` and `OAuthLogin`."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from mulligan.errors import DeclarationError


class LoginNeeded(Exception):
    """The server's authorization is missing, expired or revoked. The message says what its operator has to do."""


@dataclass(frozen=True, repr=False)
class OAuthClientCredentials:
    """The worker's own credentials, without a person (the grant `client_credentials`).

    `${NAME}` in `client_id`, `client_secret` and `private_key` is the worker's environment variable of that name.

    Args:
        client_id: The id of the client at the authorization server.
        client_secret: Its secret.
        private_key: In place of a secret, the private key (PEM) with which a JWT is signed.
        issuer: The URL of the authorization server. The credentials are sent to no other.
        algorithm: The algorithm of the JWT's signature.
        scope: The scopes to request, separated by spaces; None: those that the server asks for.

    Raises:
        DeclarationError: not exactly one of `client_secret` and `private_key` is given, or the issuer is not a URL.
    """

    client_id: str
    _: KW_ONLY
    client_secret: str | None = None
    private_key: str | None = None
    issuer: str
    algorithm: str = "RS256"
    scope: str | None = None

    def __post_init__(self) -> None:
        if (self.client_secret is None) == (self.private_key is None):
            raise DeclarationError("OAuthClientCredentials: give it a client_secret or a private_key, and not both.")
        if not self.issuer.startswith(("https://", "http://")):
            raise DeclarationError(
                f"OAuthClientCredentials: issuer is {self.issuer[:200]!r}; it must be the URL of the authorization server."
            )

    def __repr__(self) -> str:
        return f"OAuthClientCredentials(issuer={self.issuer!r})"


@dataclass(frozen=True, repr=False)
class OAuthLogin:
    """The authorization of a person, who logs in once by `mulligan mcp login` (the grant `authorization_code`).

    The login is kept in a file with mode 0600. Workers renew it by themselves, and share the file.

    Args:
        client_id: The id of a client that is registered at the authorization server; None: `mulligan mcp login` registers
            one. `${NAME}` is replaced as in `OAuthClientCredentials`.
        client_secret: Its secret, if it has one.
        client_metadata_url: The https URL of a document that describes the client, for servers that accept one.
        scope: The scopes to request, separated by spaces; None: those that the server asks for.
        token_file: Where the login is kept; None: `NAME.json` in the folder `MULLIGAN_MCP_LOGINS`.
        redirect_port: The port of this machine to which the browser returns; 0: any free one. A client that was
            registered by hand may need a fixed one; the path is `/callback`.

    Raises:
        DeclarationError: a secret without an id, or a port that is none.
    """

    _: KW_ONLY
    client_id: str | None = None
    client_secret: str | None = None
    client_metadata_url: str | None = None
    scope: str | None = None
    token_file: str | os.PathLike[str] | None = None
    redirect_port: int = 0

    def __post_init__(self) -> None:
        if self.client_secret is not None and self.client_id is None:
            raise DeclarationError("OAuthLogin: client_secret needs a client_id.")
        if not 0 <= self.redirect_port <= 65_535:
            raise DeclarationError(
                f"OAuthLogin: redirect_port is {self.redirect_port}; give a port, or 0 for any free one."
            )

    def __repr__(self) -> str:
        return "OAuthLogin()"

    def file(self, server: str, folder: str) -> Path:
        """The file with the login to a server of that name. `folder`: where it is without a `token_file`."""
        return Path(self.token_file) if self.token_file is not None else Path(folder) / f"{server}.json"
