"""OAuth for MCP servers at a URL: the SDK's providers, with logins that workers share, and requests side by side."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.utils import extract_field_from_www_auth
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from mulligan.activities.mcp.login_file import LoginFile
from mulligan.client.settings import settings
from mulligan.mcp import McpServer, expand_variables
from mulligan.mcp_auth import LoginNeeded, OAuthClientCredentials, OAuthLogin

logger = logging.getLogger("mulligan.mcp")
# It logs each failure with a traceback, for each request. We log a failure once, and the model is told of it.
logging.getLogger("mcp.client.auth.oauth2").setLevel(logging.CRITICAL)


class _Flow(OAuthClientProvider):
    """The authorization of requests, for every kind of provider.

    The SDK's own flow has one request at a time: a call of a minute would let all others wait. Here, a request with a
    valid token waits for nobody; only those that need a new token do.
    """

    _renewing: asyncio.Lock
    _server: str
    _is_reported = False

    def prepare(self, server: McpServer) -> None:
        """Set what the SDK's constructors do not take."""
        self._renewing, self._server = asyncio.Lock(), server.name

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Authorize a request; where it is refused, renew the token and send it once more.

        Raises:
            LoginNeeded: there is no token, and none can be had without a person.
        """
        refused = None
        await self._load()
        if self.context.is_token_valid():
            used = self._token
            self._add_auth_header(request)
            refused = yield request
            if not _is_refused(refused):
                self._is_reported = False
                return
        else:
            used = ""
        renewal = self._renew(request, refused, used)
        try:
            outgoing = await anext(renewal)
            while True:
                outgoing = await renewal.asend((yield outgoing))
        except StopAsyncIteration:
            pass
        except (OAuthFlowError, LoginNeeded) as error:
            raise self._report(error) from error
        finally:
            await renewal.aclose()
        if self._token and self._token != used:
            self._add_auth_header(request)
            yield request

    async def _renew(
        self, request: httpx2.Request, refused: httpx2.Response | None, used: str
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Run the SDK's flow until there is a new token. `refused`: the response, if the request was sent already."""
        async with self._renewing, self._sharing():
            await self._load()
            if self.context.is_token_valid() and self._token != used:
                return  # somebody else has renewed it
            flow = super().async_auth_flow(request)
            try:
                outgoing = await anext(flow)
                while outgoing is not request or not self._token or self._token == used:
                    if outgoing is request and refused is not None:
                        outgoing, refused = await flow.asend(refused), None
                        continue
                    response = yield outgoing
                    if outgoing is request and not _is_refused(response):
                        return
                    outgoing = await flow.asend(response)
            except StopAsyncIteration:
                pass
            finally:
                await flow.aclose()

    @property
    def _token(self) -> str:
        return self.context.current_tokens.access_token if self.context.current_tokens else ""

    async def _load(self) -> None:
        """Load what another worker may have stored."""

    def _sharing(self) -> AbstractAsyncContextManager[Any]:
        """Keeps other workers from renewing the same token."""
        return nullcontext()

    def _report(self, error: Exception) -> LoginNeeded:
        """Log a failure once, until a request is accepted again."""
        needed = error if isinstance(error, LoginNeeded) else LoginNeeded(_reason(error))
        if not self._is_reported:
            self._is_reported = True
            logger.warning("MCP server %r cannot be used: %s.", self._server, needed)
        return needed


class _ClientCredentials(_Flow, ClientCredentialsOAuthProvider):
    """The credentials of the worker: an id and a secret."""


class _PrivateKey(_Flow, PrivateKeyJWTOAuthProvider):
    """The credentials of the worker: an id and a private key."""


class _StoredLogin(_Flow):
    """The login of a person, which a worker renews. It never begins a new one."""

    _file: LoginFile
    _client: OAuthClientInformationFull | None
    """The client that the declaration names: its secret is not in the file."""

    async def _load(self) -> None:
        if self._file.has_changed() or not self._initialized:
            self.context.token_expiry_time = None
            await self._initialize()
            if self._client is not None:
                self.context.client_info = self._client
        if not self._token:
            raise self._report(LoginNeeded(self._advice("nobody has logged in to it")))

    def _sharing(self) -> AbstractAsyncContextManager[Any]:
        return self._file.locked()

    async def _perform_authorization(self) -> httpx2.Request:
        """Use the refresh token, at the endpoint that was just discovered, in place of a person's authorization."""
        if not self.context.can_refresh_token():
            raise LoginNeeded(self._advice("its login has expired, or was revoked"))
        return await self._refresh_token()

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        if response.status_code in (400, 401, 403):
            raise LoginNeeded(self._advice("its login has expired, or was revoked"))
        before = self.context.current_tokens
        await super()._handle_token_response(response)
        tokens = self.context.current_tokens
        if tokens is not None and tokens.refresh_token is None and before is not None:
            tokens.refresh_token = before.refresh_token
            await self._file.set_tokens(tokens)

    def _advice(self, problem: str) -> str:
        return f"{problem}; its operator must run `mulligan mcp login {self._server}`"


class InteractiveLogin(_Flow):
    """The login of a person who is there: the flow of `mulligan mcp login`."""


class _Memory:
    """Tokens that are not stored: the worker's credentials yield new ones."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class _NewLogin(_Memory):
    """A login that replaces the one in a file when it is complete: until then the workers use the earlier one."""

    def __init__(self, file: LoginFile) -> None:
        self._file = file

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens
        self._file.replace(tokens, self.client)


def auth_of(server: McpServer) -> httpx2.Auth | None:
    """The authorization of a worker's requests to a server; None if it declares none.

    Raises:
        MissingVariable: it refers to a variable that the worker's environment does not have.
    """
    auth = server.auth
    if auth is None:
        return None
    if isinstance(auth, OAuthLogin):
        login = _StoredLogin(server.url or "", _metadata(auth, None), login_file(server))
        login._file, login._client = login_file(server), _declared_client(auth)
        login.context.storage = login._file
        login.prepare(server)
        return login
    provider = _client_credentials(server, auth)
    provider.prepare(server)
    return provider


def interactive_login(
    server: McpServer,
    redirect_uri: str,
    show: Callable[[str], Awaitable[None]],
    wait: Callable[[], Awaitable[AuthorizationCodeResult]],
) -> InteractiveLogin:
    """The flow of a new login to a server, which replaces an earlier one.

    Args:
        server: The server; its `auth` is an OAuthLogin.
        redirect_uri: The address to which the browser returns.
        show: Shows a person the address to log in at.
        wait: Waits for what the browser returns with.

    Raises:
        MissingVariable: the declaration refers to a variable that the environment does not have.
    """
    auth = server.auth
    assert isinstance(auth, OAuthLogin)
    storage, metadata = _NewLogin(login_file(server)), _metadata(auth, redirect_uri)
    login = InteractiveLogin(
        server.url or "", metadata, storage, show, wait, client_metadata_url=auth.client_metadata_url
    )
    if (client := _declared_client(auth, redirect_uri)) is not None:
        login.context.client_info = client
        login._initialized = True
    login.prepare(server)
    return login


def login_file(server: McpServer) -> LoginFile:
    """The file with the login to a server."""
    assert isinstance(server.auth, OAuthLogin)
    return LoginFile(server.auth.file(server.name, settings().mcp_logins), server.url or "")


def _client_credentials(server: McpServer, auth: OAuthClientCredentials) -> _ClientCredentials | _PrivateKey:
    client_id, url = expand_variables(auth.client_id), server.url or ""
    if auth.client_secret is not None:
        secret = expand_variables(auth.client_secret)
        return _ClientCredentials(url, _Memory(), client_id, secret, scope=auth.scope, issuer=auth.issuer)
    key = expand_variables(auth.private_key or "")
    signing = SignedJWTParameters(
        issuer=client_id, subject=client_id, signing_key=key, signing_algorithm=auth.algorithm
    )
    provider = signing.create_assertion_provider()
    return _PrivateKey(url, _Memory(), client_id, provider, scope=auth.scope, issuer=auth.issuer)


def _declared_client(auth: OAuthLogin, redirect_uri: str | None = None) -> OAuthClientInformationFull | None:
    """The client that the declaration names; None: `mulligan mcp login` registers one, which is in the login's file."""
    if auth.client_id is None:
        return None
    secret = expand_variables(auth.client_secret) if auth.client_secret is not None else None
    return OAuthClientInformationFull(
        redirect_uris=[AnyUrl(redirect_uri)] if redirect_uri is not None else None,
        client_id=expand_variables(auth.client_id),
        client_secret=secret,
        token_endpoint_auth_method="client_secret_basic" if secret else "none",
    )


def _metadata(auth: OAuthLogin, redirect_uri: str | None) -> OAuthClientMetadata:
    uris = [AnyUrl(redirect_uri)] if redirect_uri is not None else None
    return OAuthClientMetadata(redirect_uris=uris, client_name="Mulligan", scope=auth.scope)


def _is_refused(response: httpx2.Response) -> bool:
    needs_scope = response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope"
    return response.status_code == 401 or needs_scope


def _reason(error: Exception) -> str:
    """Why there is no authorization, without the response of the authorization server, which may quote secrets.

    The SDK's errors have neither a status nor the response as a field: its messages have the response after a colon.
    """
    return f"its authorization server gave no token ({' '.join(str(error).split(':')[0].split())[:200]})"
